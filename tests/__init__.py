"""Contains the tests of imgbuild. Integration tests declare their requirements with marks."""
