"""CI jobs of targets: `ci.yaml`, job selection, shell scripts, results and reports."""
