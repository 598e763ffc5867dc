"""The forward pass: prefill, decode, eviction, precompute."""
