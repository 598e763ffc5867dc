"""The engine: what runs next, for how long, and what comes of it."""
