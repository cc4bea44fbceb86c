"""Tables, status, environment variables and differences of targets and images."""
