"""GPU kernels in Triton, checked once per device against torch before their first use."""
