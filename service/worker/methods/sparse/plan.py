"""The plan of a sparse method: which tokens each layer holds, and which it computes anew.

Source:
    docs/specification.md §1.7, steps Q5 and Q6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from service.worker.methods.sparse.blocks import BlockGrid
from service.worker.methods.sparse.selection import Selection, SketchedDocument


@dataclass(frozen=True)
class SparsePlan:
    """Per layer, prompt rows of S and the documents, ascending.

    The question is not part of the plan: it is always held and computed. Every layer keeps equally
    many rows.

    Attributes:
        kept: per layer, rows whose KV the layer holds.
        fresh: per layer, those of the kept rows whose KV is computed anew.
    """

    kept: list[list[int]]
    fresh: list[list[int]]

    @cached_property
    def rows(self) -> list[list[int]]:
        """Per layer, rows whose hidden state is needed: those that it or a later layer computes."""
        rows: list[list[int]] = []
        later: set[int] = set()
        for computed in reversed(self.fresh):
            later |= set(computed)
            rows.append(sorted(later))
        return rows[::-1]

    @cached_property
    def padding(self) -> list[list[int]]:
        """Per layer, rows that run through it although it does not hold them.

        Their stored KV is read for this layer and dropped after it.
        """
        return [
            sorted(set(rows) - set(kept)) for rows, kept in zip(self.rows, self.kept, strict=True)
        ]

    @property
    def recomputed(self) -> set[int]:
        """Rows that at least one layer computes anew."""
        return {t for layer in self.fresh for t in layer}


def fixed_tokens(documents: Sequence[SketchedDocument]) -> list[int]:
    """Prompt rows of all documents' first and last blocks, ascending."""
    return [d.start + t for d in documents for t in d.grid.indices(d.grid.fixed)]


def recomputed_ends(grid: BlockGrid, share: float) -> list[int]:
    """Tokens of a document's first and last blocks to compute anew, ascending.

    They are taken from the first block, then from the document's end backwards, until they are
    `share` of the document. A document without middle blocks is kept and computed as a whole, which
    makes it exact.
    """
    ends = grid.indices(grid.fixed)
    if not grid.middle:
        return ends
    most = math.floor(share * grid.tokens + 1e-9)
    first = ends[: min(grid.block, most)]
    rest = ends[grid.block :]
    return first + rest[max(0, len(rest) - (most - len(first))) :]


def make_plan(
    system: int,
    documents: Sequence[SketchedDocument],
    selection: Selection,
    outlier: Sequence[Tensor],
    *,
    recompute: bool,
    max_recomputed: float = 1.0,
) -> SparsePlan:
    """SamKV's plan.

    S is kept and never computed: it is exact. Computed anew are tokens of the documents' first and
    last blocks, as many as `max_recomputed` allows, and the representatives of outlier blocks where
    these are kept.

    Args:
        system: tokens of S.
        selection: the middle blocks that each layer keeps.
        outlier: per document, which blocks stand out in a layer `[layers, blocks]` bool.
    """
    edge = fixed_tokens(documents)
    anew = [d.start + t for d in documents for t in recomputed_ends(d.grid, max_recomputed)]
    kept, fresh = [], []
    for layer, blocks in enumerate(selection.blocks):
        middle, marked = [], []
        for number, block in blocks:
            document = documents[number]
            middle += [document.start + t for t in document.grid.span(block)]
            if bool(outlier[number][layer, block]):
                marked.append(document.start + int(document.sketch.representative[layer, block]))
        kept.append(sorted([*range(system), *edge, *middle]))
        fresh.append(sorted([*anew, *marked]) if recompute else [])
    return SparsePlan(kept, fresh)
