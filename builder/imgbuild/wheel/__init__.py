"""A wheel as a value: its files, its metadata, how it installs; the members of an sdist."""
