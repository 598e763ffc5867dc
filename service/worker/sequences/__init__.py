"""The life of a request inside the worker, from admission to its report."""
