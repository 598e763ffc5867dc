"""LoRA adapters: what their folders hold, and how they are read."""
