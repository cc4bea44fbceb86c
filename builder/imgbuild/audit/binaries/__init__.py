"""Shared objects and GPU code read into facts: ELF, symbols, CUDA architectures, drivers."""
