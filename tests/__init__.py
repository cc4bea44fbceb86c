"""Contains the tests of imgbuild; integration tests declare their requirements with marks."""
