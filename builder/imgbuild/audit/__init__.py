"""What can be known of a package set from its files, without a GPU."""
