"""How right the answers of sparse and dense methods are, on tasks whose answers are known."""
