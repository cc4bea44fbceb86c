"""Reads facts about shared objects and GPU code: ELF, symbols, CUDA architectures, drivers."""
