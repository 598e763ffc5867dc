"""Sketches (specification.md §1.7, P2–P6) against the reference's, and the loss from storing
them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from kvstitch_methods.samkv.sketch import BLOCK, NONE, Sketch, decays
from tests.service.worker.tiny import PREFIXES, Tiny, assert_close
from tests_methods.samkv.reference_sketch import document_sketches
from tests_methods.samkv.toys import LONG, of_reference, sketch, tokens

LENGTHS = (1, 2, 15, 16, 17, 18, 48, 49, 63, 64, 65, 81, 129, 192, 193, 200)


def assert_same_sketch(claim: str, ours: Sketch, theirs: Sketch) -> None:
    assert_close(f"{claim}: block means", ours.means, theirs.means)
    assert_close(f"{claim}: anchor", ours.anchor, theirs.anchor)
    assert_close(f"{claim}: local query", ours.local_query, theirs.local_query)
    assert_close(f"{claim}: mass", ours.mass, theirs.mass, atol=1e-6)
    assert ours.representative.tolist() == theirs.representative.tolist()
    scored = theirs.alpha.isfinite()
    assert scored.equal(ours.alpha.isfinite())
    assert_close(f"{claim}: alpha", ours.alpha[scored], theirs.alpha[scored])


@pytest.mark.parametrize("mode", ["none", "system"])
@pytest.mark.parametrize("document", [0, 1])
def test_every_field_is_the_references(any_family: Tiny, mode: str, document: int) -> None:
    """Blocks of 4; the last one of document 0 is short."""
    ids, prefix = LONG[document], PREFIXES[mode]
    theirs = of_reference(document_sketches(any_family.reference, ids, prefix, 4))
    assert 0 < theirs.alpha.isfinite().sum() < theirs.alpha.numel()
    assert_same_sketch("sketch", sketch(any_family, ids, prefix), theirs)


@pytest.mark.parametrize("block", [16, 64])
def test_every_length(model: Tiny, block: int) -> None:
    """One token, fewer than are needed to score any, whole and partial blocks, several tiles of
    queries."""
    for length in LENGTHS:
        ids = tokens(length)
        theirs = of_reference(document_sketches(model.reference, ids, (), block))
        assert theirs.alpha.isfinite().any() == (length > 16)
        assert_same_sketch(f"sketch in blocks of {block}", sketch(model, ids, (), block), theirs)


def alpha_of(column: torch.Tensor, representative: int) -> float:
    return float(decays(column[None, :, None], torch.tensor([[representative]]))[0, 0])


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 1.7])
@pytest.mark.parametrize("queries", [16, 200, 4000])
def test_alpha_of_a_power_law(alpha: float, queries: int) -> None:
    """T11: within 2 %; the representative's own column entry and those before it do not count."""
    x = torch.arange(1, queries + 1)
    column = torch.cat([torch.rand(8), 0.4 * x.float() ** -alpha])
    assert alpha_of(column, 7) == pytest.approx(alpha, rel=0.02, abs=1e-5)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_alpha_of_a_noisy_power_law(alpha: float) -> None:
    """Every value a tenth off at random."""
    noise = torch.randn(2000, generator=torch.Generator().manual_seed(1))
    law = 0.2 * torch.arange(1, 2001).float() ** -alpha
    column = torch.cat([torch.ones(1), law * (0.1 * noise).exp()])
    assert alpha_of(column, 0) == pytest.approx(alpha, rel=0.02)


def test_alpha_of_vanishing_attention() -> None:
    """Attention below 1e-8 counts as that much: zeros are finite. No representative, no alpha."""
    column = torch.zeros(40)
    assert alpha_of(column, 3) == pytest.approx(0.0, abs=1e-9)
    column[4:10] = 1e-8
    assert alpha_of(column, 3) == pytest.approx(0.0, abs=1e-6)
    assert alpha_of(column, -1) == math.inf


def varied_sketch(
    blocks: int, layers: int = 3, kv_heads: int = 2, heads: int = 6, d: int = 16
) -> Sketch:
    """A made-up sketch whose layers and blocks differ in scale by orders of magnitude."""
    source = torch.Generator().manual_seed(blocks)

    def noise(*shape: int) -> torch.Tensor:
        size = 10.0 ** torch.randint(-3, 3, shape[:-2], generator=source)
        return torch.randn(shape, generator=source) * size[..., None, None]

    start = torch.arange(blocks) * BLOCK
    offset = torch.randint(0, BLOCK, (layers, blocks), generator=source)
    offset[0, 0], offset[1, -1] = BLOCK - 1, 0
    representative = (start + offset).to(torch.int32)
    alpha = torch.randn(layers, blocks, generator=source)
    representative[2, -1], alpha[2, -1] = -1, math.inf
    return Sketch(
        noise(layers, blocks, kv_heads, d),
        noise(layers, kv_heads, d),
        noise(layers, heads, d),
        representative,
        torch.rand(layers, blocks, generator=source),
        alpha,
    )


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5, 12, 300])
def test_through_the_store(blocks: int) -> None:
    """Vectors come back to half a step of their own scale; the rest exactly. Means of init and
    local blocks, which nothing asks for, are zero."""
    whole = varied_sketch(blocks)
    stored = whole.tensors()
    back = Sketch.of(stored)
    assert back.mass.equal(whole.mass)
    assert back.alpha.equal(whole.alpha)
    assert back.representative.dtype == torch.int32
    assert back.representative.equal(whole.representative)
    middle = range(1, blocks - 2)
    for block in range(blocks):
        ours = back.means[:, block]
        if block in middle:
            assert_half_a_step(ours, whole.means[:, block])
        else:
            assert not ours.any()
    assert_half_a_step(back.anchor, whole.anchor)
    assert_half_a_step(back.local_query, whole.local_query)
    assert stored["means"].dtype == torch.int8
    assert stored["means"].shape[1] == len(middle)
    assert stored["offset"].dtype == torch.uint8
    assert int(stored["offset"][2, -1]) == NONE


def assert_half_a_step(ours: torch.Tensor, exact: torch.Tensor) -> None:
    step = exact.abs().amax((-2, -1), keepdim=True) / 127
    assert ((ours - exact).abs() <= step * 0.501).all()
    assert not ours.equal(exact)


@pytest.mark.parametrize("length", [1, 16, 64, 65, 193, 200])
def test_a_computed_sketch_through_the_store(model: Tiny, length: int) -> None:
    """Short documents and short last blocks, some of them without any scored token."""
    ours = sketch(model, tokens(length), (), BLOCK)
    back = Sketch.of(ours.tensors())
    for name in ("representative", "mass", "alpha"):
        assert getattr(back, name).equal(getattr(ours, name))
    assert back.means.shape == ours.means.shape
    assert_half_a_step(back.anchor, ours.anchor)


def test_zero_vectors_through_the_store() -> None:
    """No scale can be made of them."""
    nothing = Sketch(
        torch.zeros(1, 4, 2, 4),
        torch.zeros(1, 2, 4),
        torch.zeros(1, 6, 4),
        torch.full((1, 4), -1, dtype=torch.int32),
        torch.zeros(1, 4),
        torch.full((1, 4), math.inf),
    )
    back = Sketch.of(nothing.tensors())
    assert_all_zero([back.means, back.anchor, back.local_query])
    assert back.representative.tolist() == [[-1] * 4]


def assert_all_zero(found: Sequence[torch.Tensor]) -> None:
    assert all(x.isfinite().all() and not x.any() for x in found)
