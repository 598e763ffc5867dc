"""CPU kernels in C (x86 with AVX-512).

Every module has functions that call a kernel (`native.call`), and for each of them one that says
whether the kernel is there and takes given tensors (`supports...`). Callers use torch's operations
where it does not.
"""
