"""The forward pass over prompts of which only some tokens are held."""
