"""Every error that the retriever raises.

RetrieverError
├── SplitStopped
├── InvalidDocument
│   └── DocumentHidden
├── InvalidQuery
├── InvalidVectors
├── EmbedderError
│   ├── EmbedderNotStarted
│   └── EmbedderUnsupported
├── RerankerError
│   └── RerankerUnsupported
├── IndexFileError
│   ├── IndexMissing
│   └── IndexCorrupt
├── EmbedderMismatch
└── CatalogError
    ├── CatalogNotStarted
    ├── CatalogUnreachable
    └── CatalogUnsupported
"""


class RetrieverError(Exception):
    """Base of every error of this package."""


class SplitStopped(RetrieverError):
    """Nobody waits for the chunks of this document any more."""


class InvalidDocument(RetrieverError):
    """The document cannot be ingested as given."""


class DocumentHidden(InvalidDocument):
    """Somebody who may not read the stored document of this name would replace it."""


class InvalidQuery(RetrieverError):
    """The query, filter or page cannot be searched as given."""


class InvalidVectors(RetrieverError, ValueError):
    """The vectors do not fit the chunks or the index (also a ValueError)."""


class EmbedderError(RetrieverError):
    """Embedding failed."""


class EmbedderNotStarted(EmbedderError):
    """Used before start() or after close()."""


class EmbedderUnsupported(EmbedderError):
    """The model folder is missing, or needs steps that are not supported."""


class RerankerError(RetrieverError):
    """The reranker failed; callers keep the order of the search."""


class RerankerUnsupported(RerankerError, ValueError):
    """An unknown style of endpoint (also a ValueError)."""


class IndexFileError(RetrieverError):
    """A saved index cannot be used; it can be rebuilt from the catalog."""


class IndexMissing(IndexFileError):
    """Nothing is saved there."""


class IndexCorrupt(IndexFileError):
    """The manifest cannot be read, or a checksum is wrong."""


class EmbedderMismatch(RetrieverError):
    """Saved vectors were made by another embedder than the given one."""


class CatalogError(RetrieverError):
    """The database failed: disk full, locked, not a database."""


class CatalogNotStarted(CatalogError):
    """Used before start() or after close()."""


class CatalogUnreachable(CatalogError):
    """PostgreSQL does not answer; it may later."""


class CatalogUnsupported(CatalogError):
    """The schema is of another version than this code reads."""
