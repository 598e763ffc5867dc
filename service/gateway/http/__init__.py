"""The HTTP layer: routes, request bodies, server-sent events, OpenAPI."""
