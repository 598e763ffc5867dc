"""The arguments of all commands."""
