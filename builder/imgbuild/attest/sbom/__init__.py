"""Creates SBOMs (CycloneDX, SPDX) of images."""
