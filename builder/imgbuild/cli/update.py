"""`imgbuild update`: placeholder."""
