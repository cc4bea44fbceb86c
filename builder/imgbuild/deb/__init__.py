"""The root file system of a Debian base, made without maintainer scripts."""
