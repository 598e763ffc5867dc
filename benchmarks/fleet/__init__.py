"""Several workers: how requests are routed."""
