"""The correctness gate: fused answers held against full prefill's, and what follows from that."""
