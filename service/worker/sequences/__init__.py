"""One request inside the worker, from admission to its report."""
