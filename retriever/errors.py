"""Every error that the retriever raises.

RetrieverError
├── SplitStopped
├── InvalidDocument
│   ├── DocumentHidden
│   └── DocumentKept
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
└── DatabaseError        the same for SQLite and PostgreSQL
    ├── Unreachable
    ├── AlreadyThere
    ├── ValueRefused     (an InvalidDocument, too)
    ├── WrongSchema
    └── NotOpen
"""


class RetrieverError(Exception):
    """Base of every error of this package."""


class SplitStopped(RetrieverError):
    """Nobody waits for the chunks of this document any more."""


class InvalidDocument(RetrieverError):
    """The document cannot be ingested as given."""


class DocumentHidden(InvalidDocument):
    """Somebody who may not read the stored document of this name would replace it."""


class DocumentKept(InvalidDocument):
    """Somebody who may read the stored document of this name may not change it so."""


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


class DatabaseError(RetrieverError):
    """The database failed: disk full, locked, not a database."""


class Unreachable(DatabaseError):
    """PostgreSQL does not answer, or the connection broke: it may be tried again."""


class AlreadyThere(DatabaseError):
    """A row breaks a rule of uniqueness."""


class ValueRefused(DatabaseError, InvalidDocument):
    """A value that PostgreSQL cannot store, e.g. a NUL character in a text."""


class WrongSchema(DatabaseError):
    """The tables are not those that this release reads."""


class NotOpen(DatabaseError):
    """Used before start() or after close()."""
