"""Presents targets and images: tables, pages, status, variables, dependencies, differences."""
