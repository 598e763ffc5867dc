"""Eviction methods, one file each: they choose which KV entries a sequence keeps after prefill."""
