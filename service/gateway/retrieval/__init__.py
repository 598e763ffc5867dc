"""The retriever as the gateway uses it, without blocking the event loop."""
