"""Documents from the web. The command line fetches them, so that the service itself connects to
nothing that a caller names."""
