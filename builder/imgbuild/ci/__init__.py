"""CI jobs of targets: `ci.yaml`, which jobs, a shell script of them, results, reports."""
