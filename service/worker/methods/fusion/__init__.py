"""Fusion methods, one file each: they choose which rows of a prompt each layer computes."""
