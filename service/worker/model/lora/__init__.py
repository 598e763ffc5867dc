"""LoRA adapters in the folders that PEFT writes: what is served, and how they are read."""
