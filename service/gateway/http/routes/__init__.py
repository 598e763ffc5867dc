"""HTTP routes, each a few lines around a use case."""
