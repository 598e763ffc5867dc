"""Functions that an answer may call: how they are written in prompts, and found in answers."""
