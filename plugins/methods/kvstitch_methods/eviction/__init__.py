"""Eviction methods."""
