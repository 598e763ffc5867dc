"""The served model: weights, adapters, RoPE, attention, and the store keys of its chunks."""
