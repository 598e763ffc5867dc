"""Several workers that look like one: which of them gets a request, and what happens if it dies."""
