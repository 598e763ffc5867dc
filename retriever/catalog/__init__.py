"""The catalog: documents, chunks and vectors in SQLite."""
