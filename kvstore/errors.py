"""Every error kvstore raises, drawn once.

    KvStoreError
    ├── ChunkError           about one chunk's bytes
    │   ├── ChunkCorrupt     the bytes are not what was written: truncated, flipped, not a chunk
    │   ├── ChunkRefused     sound bytes that are not the chunk asked for (spec, version)
    │   └── ChunkSpecError   the caller asked for an impossible chunk (also a ValueError)
    └── TierError            about a place that keeps chunks
        ├── TierTimeout      no answer in time
        ├── TierUnavailable  not reachable, not started, or its circuit breaker is open
        └── TierFull         it answered: no room for this chunk

Knows no HTTP status: whoever serves requests maps these to answers.
"""


class KvStoreError(Exception):
    """Base of every error of this package."""


class ChunkError(KvStoreError):
    """Something about one chunk's bytes."""


class ChunkCorrupt(ChunkError):
    """The bytes are not those that were written. Treat as a miss and delete the copy."""


class ChunkRefused(ChunkError):
    """The bytes are sound but belong to another model, tensor_layout, codec or format version."""


class ChunkSpecError(ChunkError, ValueError):
    """The tensors or the spec handed in cannot make a chunk; the message says what to change."""


class TierError(KvStoreError):
    """A tier failed for a reason that is not about one chunk."""


class TierTimeout(TierError):
    """The tier gave no answer in time."""


class TierUnavailable(TierError):
    """The tier cannot be reached, was not started, or its circuit breaker is open."""


class TierFull(TierError):
    """The tier answered that it has no room for this chunk."""
