"""What the gateway, the worker and the command line share; it knows none of them."""
