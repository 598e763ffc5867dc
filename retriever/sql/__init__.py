"""Transactions in SQLite or PostgreSQL, for stores that write their SQL once for both."""
