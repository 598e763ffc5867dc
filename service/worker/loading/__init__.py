"""Reads chunks from the store and writes them to it, on threads of their own."""
