"""Requests and responses as pydantic models; their docstrings are part of /openapi.json."""
