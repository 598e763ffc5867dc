"""Fusion methods."""
