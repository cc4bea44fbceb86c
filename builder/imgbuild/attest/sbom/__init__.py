"""SBOMs (CycloneDX, SPDX), licences, package URLs and dependencies between packages."""
