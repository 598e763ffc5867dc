"""Prompts that stay on disk when the KV pool gives them up, and when the worker ends."""
