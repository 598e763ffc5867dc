"""What the layer loop guarantees for every method: exact S, exact layer 0, cached KV unchanged,
causality by index, window queries, and a correct count of operations."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.forward.prefill import prefill
from kvstitch.service.worker.methods.api import PrefillResult
from kvstitch.service.worker.methods.bases.dense import DenseMethod
from kvstitch.service.worker.methods.eviction.snapkv import Method as SnapKV
from kvstitch.service.worker.methods.registry import fusion_methods
from kvstitch.service.worker.steps import Steps, run
from tests.service.worker.tiny import (
    BOS,
    D1,
    D2,
    D3,
    ForcedRows,
    Q,
    Run,
    S,
    Tiny,
    assert_close,
    assert_same,
    difference,
)

pytestmark = pytest.mark.exhaustive

IDS = [*S, *D1, *D2, *D3, *Q]
SCATTERED = (8, 9, 14, 20, 22, 27, 31)
BUILT_IN = {name: cls() for name, cls in fusion_methods().items()}
METHODS: dict[str, DenseMethod] = {
    **{name: method for name, method in BUILT_IN.items() if isinstance(method, DenseMethod)},
    "forced rows": ForcedRows(SCATTERED),
}
OWN_WAYS = ("agentkvshift", "question_scout", "relaxkv")
"""Methods that change stored KV on purpose, or that compute a row at some layers only."""


@pytest.mark.parametrize("method", METHODS)
def test_system_rows_are_exact(any_family: Tiny, method: str) -> None:
    """S starts every prompt: its K and V at every layer are those of the full prefill."""
    ours = any_family.stitch(METHODS[method])
    full = any_family.reference.vanilla(IDS)
    for layer in range(any_family.decoder.layers):
        assert_close("S exact: K", ours.k[layer][: len(S)], full.k[layer][: len(S)])
        assert_close("S exact: V", ours.v[layer][: len(S)], full.v[layer][: len(S)])


@pytest.mark.parametrize("method", [m for m in METHODS if m != "full_reuse"])
def test_layer_zero_is_exact(any_family: Tiny, method: str) -> None:
    """docs/specification.md T3: layer-0 KV depends on the token alone, so a cached one is exact
    once its key is at its place."""
    ours, full = any_family.stitch(METHODS[method]), any_family.reference.vanilla(IDS)
    assert_close("layer 0 exact: K", ours.k[0], full.k[0])
    assert_close("layer 0 exact: V", ours.v[0], full.v[0])


@pytest.mark.parametrize("method", [m for m in METHODS if m not in OWN_WAYS])
def test_cached_kv_is_untouched_off_the_rows(model: Tiny, method: str) -> None:
    """docs/specification.md T7: at layers after any selection, a row not recomputed holds the
    stored V bit for bit, and the stored K rotated once to the method's position for it."""
    made = METHODS[method]
    stored = [model.precompute(ids) for ids in (S, D1, D2, D3)]
    ours = model.stitch(made, stored=stored)
    positions = made.key_positions(ours.layout)
    recomputed = set(ours.result.rows.tolist())
    untouched = [t for t in range(len(S) + 26) if t not in recomputed]
    assert untouched or method == "vanilla"
    for layer in (2, 3, 4):
        k = torch.cat([s.k[layer] for s in stored])
        v = torch.cat([s.v[layer] for s in stored])
        rotated = model.decoder.ropes[layer].rotate(k, positions[: len(k)])
        assert ours.k[layer][untouched].equal(rotated[untouched])
        assert ours.v[layer][untouched].equal(v[untouched])


@pytest.mark.parametrize("rows", [(), (7,), SCATTERED, tuple(range(7, 33))], ids=len)
def test_forced_rows_are_the_reference(any_family: Tiny, rows: tuple[int, ...]) -> None:
    """Any row set through all layers (what EPIC does with first and last tokens)."""
    expected = any_family.reference.forced_rows(any_family.prompt(), rows)
    assert_same("forced rows", any_family.stitch(ForcedRows(rows)), expected)


# -- causality (docs/specification.md T5) ----------------------------------------------------------

EARLY = (8, 9, 14, 20, 22)  # in D_1 and D_2
OTHER_D3 = [71, 72, 4, 74, 6, 76, 77, 78, 79]


def early_kv(k: Sequence[Tensor], v: Sequence[Tensor]) -> Tensor:
    return torch.stack([*(x[list(EARLY)] for x in k), *(x[list(EARLY)] for x in v)])


def test_recomputed_rows_do_not_see_later_documents(any_family: Tiny) -> None:
    """Another D_3, a longer one or none at all: recomputed rows of D_1, D_2 stay as they are."""
    method = ForcedRows(EARLY)
    base = any_family.stitch(method)
    for last in (OTHER_D3, OTHER_D3 * 3, [4]):
        changed = any_family.stitch(method, documents=(D1, D2, last))
        gap = difference(early_kv(base.k, base.v), early_kv(changed.k, changed.v))
        assert gap <= 1e-5, f"recomputed rows moved by {gap:.2g}"
        assert difference(base.logits, changed.logits) > 1e-2  # the question does see D_3


# -- what the loop hands out ----------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("window", [1, 3, len(Q)])
def test_observed_queries(model: Tiny, method: str, window: int) -> None:
    """The last prompt queries of every layer, rotated: what the cache they attend to implies.
    (Layers 0 and 1 are comparable for all; A3's and vanilla's are exact there.)"""
    ours = model.stitch(METHODS[method], eviction=SnapKV(budget=20, window=window))
    full = model.reference.vanilla(IDS)
    assert len(ours.result.observed) == model.decoder.layers
    assert_close("window queries, layer 0", ours.result.observed[0], full.q[0][-window:])
    assert all(len(q) == window for q in ours.result.observed)
    if method in ("vanilla", "a3"):
        assert_close("window queries, layer 1", ours.result.observed[1], full.q[1][-window:])
    if method == "vanilla":
        assert_close("window queries, last layer", ours.result.observed[-1], full.q[-1][-window:])


@pytest.mark.parametrize("method", METHODS)
def test_window_does_not_change_the_answer(model: Tiny, method: str) -> None:
    without, with_window = (
        model.stitch(METHODS[method]),
        model.stitch(METHODS[method], eviction=SnapKV(budget=20, window=3)),
    )
    assert without.logits.equal(with_window.logits)


def test_no_window_keeps_no_queries(model: Tiny) -> None:
    assert model.stitch(METHODS["pie"]).result.observed == []


def test_pauses_after_every_layer(model: Tiny) -> None:
    """The engine can put decode steps between layers, or close the generator."""
    steps = prefill_steps(model)
    assert sum(1 for _ in steps) == model.decoder.layers
    dropped = prefill_steps(model)
    next(dropped)
    dropped.close()
    assert list(dropped) == []


def prefill_steps(model: Tiny) -> Steps[PrefillResult]:
    done: Run = model.stitch(METHODS["vanilla"])
    stored = [model.precompute(ids) for ids in (S, D1, D2, D3)]
    return prefill(model.decoder, done.layout, stored, METHODS["pie"], done.sequence)


@pytest.mark.parametrize("method", METHODS)
def test_work_is_counted(model: Tiny, method: str) -> None:
    """rows_per_layer never grows, ends with the answer's row; `rows` are the last layer's, Q in."""
    ours = model.stitch(METHODS[method], uncached=[2]).result
    assert len(ours.rows_per_layer) == model.decoder.layers
    assert ours.rows_per_layer == sorted(ours.rows_per_layer, reverse=True)
    assert ours.rows_per_layer[-1] == 1
    rows = ours.rows.tolist()
    assert rows == sorted(set(rows))
    uncached = range(len(S) + len(D1), len(S) + len(D1) + len(D2))
    assert {*uncached, *range(len(IDS) - len(Q), len(IDS))} <= set(rows)


def test_capture_sees_only_computed_rows(model: Tiny) -> None:
    """Precompute of a prompt with cached S would store the new rows only."""
    seen: list[int] = []
    done = model.stitch(METHODS["vanilla"])
    stored = [model.precompute(ids) for ids in (S, D1, D2, D3)]
    run(
        prefill(
            model.decoder,
            done.layout,
            stored,
            METHODS["pie"],
            done.sequence,
            capture=lambda view: seen.append(len(view.fresh_k)),
        )
    )
    assert seen == [len(Q)] * model.decoder.layers


def test_stored_kv_may_be_a_view_of_read_only_bytes(model: Tiny) -> None:
    """Cached tensors come as strided views (a store's buffer); placement never writes."""
    packed = []
    for ids in (S, D1, D2, D3):
        plain = model.precompute(ids)
        flat = [torch.stack([k, v]) for k, v in zip(plain.k, plain.v, strict=True)]
        packed.append(Packed(flat))
    before = [t.clone() for p in packed for t in p.layers]
    plain_run = model.stitch(METHODS["a3"], prefix=[])
    view_run = model.stitch(METHODS["a3"], stored=packed)  # type: ignore[arg-type]
    assert view_run.logits.equal(plain_run.logits)
    after = [t for p in packed for t in p.layers]
    assert all(a.equal(b) for a, b in zip(before, after, strict=True))


class Packed:
    """K and V of a layer side by side in one tensor."""

    def __init__(self, layers: list[Tensor]) -> None:
        self.layers = layers

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.layers[layer][0], self.layers[layer][1]


def test_prefix_bos_drops_the_bos_row(model: Tiny) -> None:
    """The stored segment has the document's tokens only, at offset 1."""
    assert len(model.precompute(D1, [BOS]).k[0]) == len(D1)
