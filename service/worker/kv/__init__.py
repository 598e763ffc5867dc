"""The pool of KV memory that sequences share."""
