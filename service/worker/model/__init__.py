"""The served model: weights, adapters, RoPE, attention, and the keys of its chunks."""
