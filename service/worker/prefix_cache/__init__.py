"""The prefix cache: KV of earlier prompts, in the KV pool and on disk.

It knows prompts by their tokens, and nothing of requests and sequences.
"""
