"""Tasks whose answers can be checked, beside RULER and LongBench."""
