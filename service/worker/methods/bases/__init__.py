"""Base classes of methods: dense, two-pass and sparse fusion methods, and eviction methods."""
