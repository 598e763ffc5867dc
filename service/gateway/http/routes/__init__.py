"""HTTP routes. Their docstrings are part of /openapi.json."""
