"""The audit log: who did what, in entries that are chained by hash."""
