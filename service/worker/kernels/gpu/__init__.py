"""Kernels for CUDA GPUs, in Triton."""
