"""The pool of KV memory that running sequences share."""
