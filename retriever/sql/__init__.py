"""SQLAlchemy over an SQLite file or a schema of PostgreSQL: transactions, errors and revisions."""
