"""`kvstitch ask`, and the comparison of methods."""
