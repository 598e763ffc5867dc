"""`kvstitch bulk`: very many documents into catalog, index and shared KV tiers, by many workers.

    input ── ranges of some hundred documents, a row each in PostgreSQL ── Ray Data, ids alone
        └── each of N actors: claim ── parse ── chunk ── embed ── catalog ── worker process ── tiers

The ingest is the gateway's own (service/gateway/documents), used as a library, and the worker
process is the one that gateways start. Nothing here knows a model, a chunk's KV or a tier. Ray is
imported by `driver` alone, when a run starts.
"""
