"""Where workers are: sources of addresses, each of which yields the whole list when it changed."""
