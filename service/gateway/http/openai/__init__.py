"""Translates between the OpenAI API and this service's own requests and responses."""
