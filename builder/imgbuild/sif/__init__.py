"""Writes an image as one file: a SIF for Apptainer, or a squashfs for enroot."""
