"""The HTTP side: routes, request bodies, server-sent events, OpenAPI."""
