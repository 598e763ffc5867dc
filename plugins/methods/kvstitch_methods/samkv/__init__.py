"""What SamKV, and methods like it, read of documents and compute over it."""
