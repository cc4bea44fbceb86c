"""A wheel as a value: its files, its metadata, how it installs."""
