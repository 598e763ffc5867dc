"""How well the demo model answers, and how well its documents are found."""
