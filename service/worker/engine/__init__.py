"""The engine: decides what runs next and for how long, runs it, and returns replies."""
