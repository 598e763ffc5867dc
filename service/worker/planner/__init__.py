"""Decides which documents are loaded and which are computed, for the earliest first token."""
