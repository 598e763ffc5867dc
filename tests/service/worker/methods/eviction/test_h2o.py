"""H2O (docs/specification.md §2.2): column sums over all computed rows, in tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.methods.eviction.h2o import TILE
from kvstitch.service.worker.methods.eviction.h2o import Method as H2O
from tests.references.eviction import attention_weights
from tests.service.worker.methods.eviction.harness import Shape, kept_by, random_layers, view_of
from tests.service.worker.tiny import assert_close


def columns(shape: Shape, rows: list[int]) -> Tensor:
    """`[kv_heads, n]`: the reference's attention summed over rows, mean over groups of three."""
    q, k = random_layers(shape, 3)[0]
    weights = attention_weights(q, k, rows)[:, rows].sum(1)
    return weights.view(2, 3, shape.tokens).mean(1)


@pytest.mark.parametrize("tokens", [TILE - 1, TILE, TILE + 1, 2 * TILE, 2 * TILE + 1])
def test_tiles_add_up(tokens: int) -> None:
    shape = Shape(2, tokens - 5, 3)
    view = view_of(shape.layout, 0, random_layers(shape, 3)[0], 4)
    sums = H2O(budget=10).observe(view)
    assert sums.dtype == torch.float32
    assert_close("h2o: column sums", sums, columns(shape, list(range(tokens))))


@pytest.mark.parametrize("document", [40, 2 * TILE])
def test_only_computed_rows_count(document: int) -> None:
    """A third of the document and the question, as after a fusion method."""
    shape = Shape(4, document, 6)
    rows = [*range(4, 4 + document, 3), *range(4 + document, shape.tokens)]
    view = view_of(shape.layout, 0, random_layers(shape, 3)[0], 4)
    index = torch.tensor(rows)
    partial = replace(view, rows=index, q=view.q[index])
    assert_close("h2o: some rows", H2O(budget=10).observe(partial), columns(shape, rows))


def test_its_work_is_counted_and_only_done_if_needed() -> None:
    """2·d operations per query head and visible pair; none where the prompt fits."""
    shape = Shape(2, 30, 3)
    view = view_of(shape.layout, 0, random_layers(shape, 3)[0], 4)
    H2O(budget=35).observe(view)
    assert view.flops.total == 0
    H2O(budget=34).observe(view)
    assert view.flops.total == 2 * 8 * 6 * 35 * 36 / 2


def test_recents_are_kept_where_nothing_else_is_protected() -> None:
    """A question of 12, five recents, attention that never looks at them."""
    shape = Shape(3, 60, 12)
    q, k = torch.ones(75, 6, 8), torch.zeros(75, 2, 8)
    k[-12:] = -5.0
    kept = kept_by(H2O(budget=20, recent=5, protect=False), shape.layout, [(q, k)])
    assert kept == [[[*range(15), *range(70, 75)]] * 2]


def test_flat_attention_favours_early_tokens() -> None:
    """More queries see them; a method that divided by the number of queries would not."""
    shape = Shape(0, 50, 4)
    flat = [(torch.zeros(54, 6, 8), torch.zeros(54, 2, 8))]
    kept = kept_by(H2O(budget=20, recent=4, protect=False), shape.layout, flat)
    assert kept == [[[*range(16), *range(50, 54)]] * 2]
