"""Requests that nobody should send, beside the answers of others."""
