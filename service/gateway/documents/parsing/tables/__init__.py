"""Tables of all formats: rows whose cells name their columns."""
