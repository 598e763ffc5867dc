"""Documents in and out: jobs, indexing, precompute, purges and their receipts."""
