"""A package set as the audit sees it: wheels, their facts, their libraries."""
