"""Which words a text has: the same for what is stored and for what is asked."""
