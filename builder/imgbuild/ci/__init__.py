"""What a CI does with targets: which jobs there are, one job's real steps, what came of them."""
