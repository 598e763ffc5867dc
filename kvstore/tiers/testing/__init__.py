"""A tier for tests that fails on demand."""
