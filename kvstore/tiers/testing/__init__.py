"""A tier that fails on demand."""
