"""Every error that the retriever raises.

RetrieverError
├── InvalidDocument          the document cannot be ingested as given
├── InvalidQuery             the query, filter or page cannot be searched as given
├── InvalidVectors           the vectors do not fit the chunks or the index (also a ValueError)
├── EmbedderError            embedding failed
│   ├── EmbedderNotStarted   used before start() or after close()
│   └── EmbedderUnsupported  the model folder is missing, or needs steps that are not supported
├── RerankerError            the reranker failed; callers keep the order of the search
│   └── RerankerUnsupported  an unknown style of endpoint (also a ValueError)
├── IndexFileError           a saved index cannot be used; it can be rebuilt from the catalog
│   ├── IndexMissing         nothing is saved there
│   └── IndexCorrupt         the manifest cannot be read, or a checksum is wrong
├── EmbedderMismatch         saved vectors were made by another embedder than the given one
└── CatalogError             the database failed: disk full, locked, not a database
    ├── CatalogNotStarted    used before start() or after close()
    ├── CatalogUnreachable   PostgreSQL does not answer; it may later
    └── CatalogUnsupported   the schema is of another version than this code reads
"""


class RetrieverError(Exception):
    """Base of every error of this package.

    Attributes:
        code: a stable word for clients and metrics.
    """

    code = "retriever_error"


class InvalidDocument(RetrieverError):
    code = "invalid_document"


class InvalidQuery(RetrieverError):
    code = "invalid_query"


class InvalidVectors(RetrieverError, ValueError):
    code = "invalid_vectors"


class EmbedderError(RetrieverError):
    code = "embedder_error"


class EmbedderNotStarted(EmbedderError):
    code = "embedder_not_started"


class EmbedderUnsupported(EmbedderError):
    code = "embedder_unsupported"


class RerankerError(RetrieverError):
    code = "reranker_error"


class RerankerUnsupported(RerankerError, ValueError):
    code = "reranker_unsupported"


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


class CatalogUnreachable(CatalogError):
    code = "catalog_unreachable"


class CatalogUnsupported(CatalogError):
    code = "catalog_unsupported"
