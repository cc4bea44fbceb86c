"""Defines the media type and the predicate types of in-toto statements about images."""

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
# Predicate types: an image signature in the format of cosign 3, and attestations.
SIGNATURE = "https://sigstore.dev/cosign/sign/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
CYCLONEDX = "https://cyclonedx.org/bom"
SPDX = "https://spdx.dev/Document"
OPENVEX = "https://openvex.dev/ns"  # without a version, as in cosign
