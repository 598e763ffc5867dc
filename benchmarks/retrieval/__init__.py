"""What retrieval finds, and how fast."""
