"""`kvstitch tune`: measures which settings suit a model and its documents, and recommends some."""
