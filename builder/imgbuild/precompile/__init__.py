"""FlashInfer and Triton kernels and bytecode, compiled ahead and packed as wheels."""
