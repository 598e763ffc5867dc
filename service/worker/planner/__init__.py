"""Load or recompute: what brings the first token sooner."""
