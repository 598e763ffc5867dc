"""Requests and responses in the shape of the OpenAI API."""
