"""SamKV's parts: what is kept of a chunk beside its KV, what of it a question needs, and the layer
loop over prompts of which only some tokens are held (METHODS §1.7)."""
