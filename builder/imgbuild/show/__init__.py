"""Formats targets and images: tables, pages, states, variables, dependencies and differences."""
