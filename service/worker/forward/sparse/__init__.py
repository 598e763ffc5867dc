"""The forward pass over a prompt of which only some tokens are held."""
