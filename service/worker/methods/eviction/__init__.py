"""Eviction methods, one file each: which KV entries a sequence keeps after its first token."""
