"""How answer tokens are chosen."""
