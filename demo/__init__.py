"""The embedded default: a small corpus, a small model that answers from it, and its trainer."""
