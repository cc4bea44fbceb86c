"""Which code runs when packages are used as intended; an evaluator of Python source."""
