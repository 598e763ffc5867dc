"""A client of a running service, for blocking code and for coroutines.

    with Client("http://localhost:8000") as client:
        client.ingest([{"doc_id": "kettle", "text": "The warranty of the kettle is two years."}])
        print(client.generate("How long is the warranty?").text)

Both clients make the same calls (`calls`), send and repeat them by the same rules (`connection`),
and read the same records (`kvstitch.records`). The blocking one runs the other one's methods over a
transport that blocks.
"""

from kvstitch.client.async_client import AsyncClient
from kvstitch.client.errors import KvstitchError
from kvstitch.client.events import Done, Event, Sources, Token, server_sent_events
from kvstitch.client.sync_client import Client
from kvstitch.records.answers import (
    Answer,
    CacheReport,
    Citation,
    Embeddings,
    Explanation,
    Methods,
    Reranking,
    SearchResult,
    SearchResults,
)
from kvstitch.records.documents import (
    Collection,
    Document,
    DocumentText,
    DocumentWarning,
    Job,
    Receipt,
)

__all__ = [
    "Answer",
    "AsyncClient",
    "CacheReport",
    "Citation",
    "Client",
    "Collection",
    "Document",
    "DocumentText",
    "DocumentWarning",
    "Done",
    "Embeddings",
    "Event",
    "Explanation",
    "Job",
    "KvstitchError",
    "Methods",
    "Receipt",
    "Reranking",
    "SearchResult",
    "SearchResults",
    "Sources",
    "Token",
    "server_sent_events",
]
