"""Tables, pages, status, variables, dependencies and differences of targets and images."""
