"""The indexes that are searched: vectors, words, and both rankings together."""
