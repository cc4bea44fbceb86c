"""Reads shared objects and GPU code into facts: ELF, symbols, CUDA architectures, drivers."""
