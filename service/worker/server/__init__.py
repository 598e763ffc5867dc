"""The worker's server: the socket, messages in, events out, and the counters it reports."""
