"""Every error that kvstore raises.

KvStoreError
├── ChunkError           about the bytes of one chunk
│   ├── ChunkCorrupt     the bytes differ from what was written: truncated, changed, no chunk
│   ├── ChunkRefused     intact bytes, but not of the expected chunk (other spec or version)
│   ├── ChunkLocked      sealed under a key that is not here
│   └── ChunkSpecError   the caller asked for an impossible chunk (also a ValueError)
├── TierError            about one tier
│   ├── TierTimeout      no answer in time
│   ├── TierUnavailable  not reachable, not started, or its circuit breaker is open
│   └── TierFull         the tier answered that it has no room for this chunk
└── StoreConfigError     the store cannot be built from these tiers (also a ValueError)
"""


class KvStoreError(Exception):
    """Base of every error of this package."""


class ChunkError(KvStoreError):
    """Something is wrong with the bytes of one chunk."""


class ChunkCorrupt(ChunkError):
    """The bytes differ from what was written. Treat it as a miss and delete the copy."""


class ChunkRefused(ChunkError):
    """The bytes are intact but belong to another model, layout, codec or format version."""


class ChunkLocked(ChunkError):
    """The bytes are sealed under a key that is not here. The copy stays: others may have it."""


class ChunkSpecError(ChunkError, ValueError):
    """No chunk can be made from the given tensors or spec; the message says what to change."""


class TierError(KvStoreError):
    """A tier failed, and the reason is not one particular chunk."""

    def __init__(self, message: str, *, server: str | None = None, found: object = None) -> None:
        super().__init__(message)
        self.server = server
        self.found = found


class TierTimeout(TierError):
    """The tier gave no answer in time."""


class TierUnavailable(TierError):
    """The tier cannot be reached, was not started, or its circuit breaker is open."""


class TierFull(TierError):
    """The tier answered that it has no room for this chunk."""


class StoreConfigError(KvStoreError, ValueError):
    """The store cannot be built from the given tiers; the message says what to change."""
