"""Documents in and out: jobs, indexing, precomputed KV, deletions and their receipts."""
