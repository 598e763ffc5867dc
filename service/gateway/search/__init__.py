"""Searching: the retriever for coroutines, passages with and without an answer, its models."""
