"""Documents in and out: jobs, ingestion, precomputed KV, deletions and their receipts."""
