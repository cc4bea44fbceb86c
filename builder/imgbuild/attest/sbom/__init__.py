"""SBOMs (CycloneDX, SPDX), licences, package URLs, which package needs which."""
