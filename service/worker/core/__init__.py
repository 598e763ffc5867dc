"""Plain records and small functions that every other room uses."""
