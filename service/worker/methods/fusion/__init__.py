"""Fusion methods, one file each: which rows of a stitched prompt are computed at which layer."""
