"""SBOMs, as CycloneDX and SPDX."""
