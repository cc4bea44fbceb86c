"""From a target to its wheels, sdists and Debian packages, with uv."""
