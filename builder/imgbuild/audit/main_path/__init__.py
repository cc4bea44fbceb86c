"""Which code runs when the packages are used as intended."""
