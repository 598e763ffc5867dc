"""The worker process on its socket."""
