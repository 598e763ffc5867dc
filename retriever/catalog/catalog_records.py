"""What the catalog tells about itself: its state, its sizes, and what became of a document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from retriever.documents import Chunk
from retriever.errors import RetrieverError
from retriever.scope import Scope


@dataclass(frozen=True)
class CatalogState:
    """A state of the catalog. The token is random, so that a restored backup of the same generation
    differs."""

    generation: int
    token: str


@dataclass(frozen=True)
class IndexChange:
    """What one change of the catalog means for a vector index."""

    scope: Scope
    removed: list[int]
    ids: list[int]
    vectors: npt.NDArray[np.float32]


@dataclass(frozen=True)
class CorpusCounts:
    """Sizes of a corpus; tokens are counted in the rendered chunks."""

    documents: int
    chunks: int
    tokens: int


@dataclass(frozen=True)
class IngestResult:
    """What became of one document: its chunks now, and those of its previous revision."""

    doc_id: str
    status: Literal["created", "updated", "unchanged", "failed"]
    chunks: list[Chunk] = field(default_factory=list)
    removed_chunk_ids: list[int] = field(default_factory=list)
    error: RetrieverError | None = None
    state: CatalogState | None = None


@dataclass(frozen=True)
class WordHits:
    """What a query's words find."""

    ranked: list[tuple[int, float]]
    exact: list[set[int]]
