"""Whether a request can be answered, and by which methods."""
