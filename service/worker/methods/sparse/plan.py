"""Which tokens of a prompt each layer holds, computes, and needs in passing (METHODS §1.7, Q5, Q6).

    kept[l]    G_l  tokens of S and documents whose KV the layer holds, ascending
    fresh[l]   R_l  of those, tokens whose KV is computed anew
    rows[l]    U_l  tokens whose hidden state is needed at the layer: all of R_l and later R's
    padding[l]      U_l not in G_l: their stored KV is read for this layer and dropped after it

Every layer keeps equally many tokens. Plain lists of global token indices; knows no tensors of KV.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from service.worker.methods.sparse.blocks import BlockGrid
from service.worker.methods.sparse.selection import Selection, SketchedDocument


@dataclass(frozen=True)
class SparsePlan:
    kept: list[list[int]]
    fresh: list[list[int]]
    rows: list[list[int]]

    @property
    def padding(self) -> list[list[int]]:
        return [
            sorted(set(rows) - set(kept)) for rows, kept in zip(self.rows, self.kept, strict=True)
        ]

    @property
    def recomputed(self) -> set[int]:
        """Tokens that some layer computes anew."""
        return {t for layer in self.fresh for t in layer}


def fixed_tokens(documents: Sequence[SketchedDocument]) -> list[int]:
    """Global indices of all documents' init and local blocks, ascending."""
    return [d.start + t for d in documents for t in d.grid.indices(d.grid.fixed)]


def recomputed_ends(grid: BlockGrid, share: float) -> list[int]:
    """Local indices of init and local tokens to compute anew, ascending: those of the first block,
    then from the end backwards, at most `share` of the document. Without middle blocks everything
    is kept, and everything is computed: the document is exact then."""
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
    """S (`system` tokens) is kept and never computed: it is exact. R: init and local tokens, as
    many as `max_recomputed` lets, and representatives of outlier blocks where they are kept."""
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
    rows: list[list[int]] = []
    later: set[int] = set()
    for computed in reversed(fresh):
        later |= set(computed)
        rows.append(sorted(later))
    return SparsePlan(kept, fresh, rows[::-1])
