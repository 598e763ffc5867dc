"""CPU kernels in C (x86 with AVX-512), called through ctypes.

All kernel modules have the same shape: `Kernel` wraps the compiled library, `kernel()` returns it
or None where it cannot run, and `supports(...)` or `kernel_for(...)` says whether it takes given
tensors. Callers use torch's operations where it does not.
"""
