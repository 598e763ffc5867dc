"""LoRA adapters: what their folders hold, how they are read, and what they add to products."""
