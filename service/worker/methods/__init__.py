"""Fusion and eviction methods, one file each."""
