"""FullReuse against the reference, and against PIE (docs/specification.md T6)."""

from __future__ import annotations

import pytest

from kvstitch.service.worker.methods.fusion.full_reuse import Method as FullReuse
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from tests.service.worker.tiny import (
    BOS,
    D1,
    D2,
    D3,
    EDGES,
    PREFIXES,
    S,
    Tiny,
    assert_same,
    difference,
)

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("mode", PREFIXES)
def test_is_the_reference(any_model: Tiny, mode: str) -> None:
    """Keys at their own precomputed positions, Q at the global ones."""
    prefix = PREFIXES[mode]
    prompt = any_model.prompt(prefix=prefix)
    ours = any_model.stitch(FullReuse(), prefix=prefix)
    assert_same(f"full_reuse, prefix {mode}", ours, any_model.reference.full_reuse(prompt))


@pytest.mark.parametrize("edge", EDGES)
def test_edges(any_family: Tiny, edge: str) -> None:
    system, documents, uncached = EDGES[edge]
    prompt = any_family.prompt(system, documents, uncached=uncached)
    ours = any_family.stitch(FullReuse(), system, documents, uncached=uncached)
    assert_same("full_reuse, edges", ours, any_family.reference.full_reuse(prompt))


@pytest.mark.parametrize(
    ("system", "documents", "prefix", "same"),
    [
        (S, [D1], S, True),  # offset |S| is where D_1 lies
        (S, [], [], True),  # only S, whose local position is its global one
        ([BOS], [D1], [BOS], True),
        ([], [D1], [], True),
        (S, [D1], [], False),
        (S, [D1], [BOS], False),
        (S, [D1, D2], S, False),  # D_1 fits, D_2 does not
        ([], [D1, D2], [], False),
        (S, [D1, D2, D3], [], False),
    ],
)
def test_is_pie_iff_local_offsets_are_global(
    any_family: Tiny,
    system: list[int],
    documents: list[list[int]],
    prefix: list[int],
    same: bool,
) -> None:
    """Bit for bit where they are; clearly different where one is not."""
    reuse = any_family.stitch(FullReuse(), system, documents, prefix=prefix)
    pie = any_family.stitch(Pie(), system, documents, prefix=prefix)
    if same:
        assert reuse.logits.equal(pie.logits)
        assert all(a.equal(b) for a, b in zip(reuse.k, pie.k, strict=True))
    else:
        assert difference(reuse.logits, pie.logits) > 1e-2
    first = slice(len(system))
    assert all(a[first].equal(b[first]) for a, b in zip(reuse.v, pie.v, strict=True))
