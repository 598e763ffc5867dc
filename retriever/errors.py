"""Every error the retriever raises. Knows nothing of HTTP: whoever serves maps `code` to a status.

RetrieverError
├── InvalidDocument          the document cannot be ingested as given
├── InvalidQuery             the query, filter or page cannot be searched as given
├── EmbedderError            embedding failed
│   ├── EmbedderNotStarted   used before start() or after close()
│   └── EmbedderUnsupported  the model folder is missing, or asks for what we do not run
├── RerankerError            the reranker failed; callers keep the order of the search
├── IndexFileError           a saved index cannot be used; the catalog can rebuild it
│   ├── IndexMissing         nothing is saved there
│   └── IndexCorrupt         a manifest or checksum does not hold
├── EmbedderMismatch         saved vectors were made by another embedder than the one given
└── CatalogError             SQLite refused: disk full, locked, not a database
    ├── CatalogNotStarted    used before start() or after close()
    └── CatalogUnsupported   the schema is of another version than this code reads
"""


class RetrieverError(Exception):
    """Base of all; `code` is a stable word for clients and metrics."""

    code = "retriever_error"


class InvalidDocument(RetrieverError):
    code = "invalid_document"


class InvalidQuery(RetrieverError):
    code = "invalid_query"


class EmbedderError(RetrieverError):
    code = "embedder_error"


class EmbedderNotStarted(EmbedderError):
    code = "embedder_not_started"


class EmbedderUnsupported(EmbedderError):
    code = "embedder_unsupported"


class RerankerError(RetrieverError):
    code = "reranker_error"


class IndexFileError(RetrieverError):
    code = "index_file_error"


class IndexMissing(IndexFileError):
    code = "index_missing"


class IndexCorrupt(IndexFileError):
    code = "index_corrupt"


class EmbedderMismatch(RetrieverError):
    code = "embedder_mismatch"


class CatalogError(RetrieverError):
    code = "catalog_error"


class CatalogNotStarted(CatalogError):
    code = "catalog_not_started"


class CatalogUnsupported(CatalogError):
    code = "catalog_unsupported"
