"""What a user's project declares: requirement files, metadata, lock files, a Dockerfile."""
