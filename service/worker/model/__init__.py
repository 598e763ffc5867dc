"""The served model: weights, a decoder per family, RoPE, attention, and keys of its chunks."""
