"""Documents and chunks in SQLite."""
