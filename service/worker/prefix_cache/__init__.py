"""KV of earlier prompts, in the KV pool and on disk, for prompts that begin alike.

It knows prompts by their tokens, and nothing of requests and sequences.
"""
