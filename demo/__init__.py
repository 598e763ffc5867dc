"""The demo: a small corpus, questions about it, and how its small model was trained."""
