"""LegoLink against the reference (docs/specification.md §1.4, T1, T2)."""

from __future__ import annotations

import pytest

from kvstitch.service.worker.methods.fusion.legolink import Method as LegoLink
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from tests.references.fusion import legolink, legolink_rows
from tests.service.worker.methods.fusion.rows import document_rows
from tests.service.worker.tiny import D1, D2, D3, EDGES, Q, S, Tiny, assert_same

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize(("first", "last"), [(2, 2), (3, 0), (0, 4), (1, 7), (20, 20)])
@pytest.mark.parametrize("skip", [False, True])
def test_is_the_reference(any_model: Tiny, first: int, last: int, skip: bool) -> None:
    """Rows, logits and KV at every layer; documents shorter than both ends are whole."""
    prompt = any_model.prompt()
    ours = any_model.stitch(LegoLink(first=first, last=last, skip_first_doc=skip))
    options = {"skip_first_doc": skip}
    assert document_rows(ours) == legolink_rows(prompt, first, last, **options)
    assert_same("legolink", ours, legolink(any_model.reference, prompt, first, last, **options))


def test_no_ends_is_pie(any_model: Tiny) -> None:
    """docs/specification.md T2."""
    ours, pie = any_model.stitch(LegoLink(first=0, last=0)), any_model.stitch(Pie())
    assert ours.logits.equal(pie.logits)


def test_ends_over_whole_documents_are_full_prefill(any_model: Tiny) -> None:
    """docs/specification.md T1: k_b >= T_i."""
    expected = any_model.reference.vanilla([*S, *D1, *D2, *D3, *Q])
    assert_same("legolink, whole", any_model.stitch(LegoLink(first=11, last=0)), expected)


@pytest.mark.parametrize("edge", EDGES)
def test_edges(any_family: Tiny, edge: str) -> None:
    """Orders, repetitions, empty, tiny and uncached segments."""
    system, documents, uncached = EDGES[edge]
    ours = any_family.stitch(LegoLink(first=2, last=1), system, documents, uncached=uncached)
    prompt = any_family.prompt(system, documents, uncached=uncached)
    assert_same("legolink, edges", ours, legolink(any_family.reference, prompt, 2, 1))


def test_every_layer_computes_the_same_rows(model: Tiny) -> None:
    rows = model.stitch(LegoLink(first=2, last=2)).result.rows_per_layer
    assert rows == [12 + len(Q)] * 4 + [1]
