"""What a chunk is precomputed behind: earlier pieces of its document, or primers."""
