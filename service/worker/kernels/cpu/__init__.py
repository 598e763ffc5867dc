"""Kernels for x86 CPUs, in C, with torch operations to fall back on."""
