"""The tier of files on a local disk."""
