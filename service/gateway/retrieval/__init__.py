"""The retriever, for use without blocking the event loop."""
