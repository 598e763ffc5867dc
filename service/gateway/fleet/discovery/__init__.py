"""Where the workers are that run by themselves."""
