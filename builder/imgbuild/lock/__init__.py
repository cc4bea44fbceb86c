"""What a lock holds, and how it is written and compared."""
