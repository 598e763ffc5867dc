"""A client of a running service, for blocking code and for coroutines.

    with Client("http://localhost:8000") as client:
        client.ingest([{"doc_id": "kettle", "text": "The warranty of the kettle is two years."}])
        print(client.generate("How long is the warranty?").text)

Both clients make the same calls (`calls`), send and repeat them by the same rules (`connection`),
and read the same records (`kvstitch.records`). The blocking one runs the other one's methods over a
transport that blocks.
"""

from kvstitch.client.async_client import AsyncClient as AsyncClient
from kvstitch.client.errors import KvstitchError as KvstitchError
from kvstitch.client.events import Done as Done
from kvstitch.client.events import Event as Event
from kvstitch.client.events import Sources as Sources
from kvstitch.client.events import Token as Token
from kvstitch.client.events import server_sent_events as server_sent_events
from kvstitch.client.sync_client import Client as Client
from kvstitch.records.answers import Answer as Answer
from kvstitch.records.answers import CacheReport as CacheReport
from kvstitch.records.answers import Citation as Citation
from kvstitch.records.answers import Embeddings as Embeddings
from kvstitch.records.answers import Explanation as Explanation
from kvstitch.records.answers import Methods as Methods
from kvstitch.records.answers import Reranking as Reranking
from kvstitch.records.answers import SearchResult as SearchResult
from kvstitch.records.answers import SearchResults as SearchResults
from kvstitch.records.documents import Collection as Collection
from kvstitch.records.documents import Document as Document
from kvstitch.records.documents import DocumentText as DocumentText
from kvstitch.records.documents import DocumentWarning as DocumentWarning
from kvstitch.records.documents import Job as Job
from kvstitch.records.documents import Receipt as Receipt
