"""`kvstitch ingest`, `documents` and `jobs`."""
