"""Chunks out of the store and into it, on threads of their own."""
