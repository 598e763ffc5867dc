"""The gated delta rule by blocks and its mapping, against rows one after the other in float64."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.model import gated_delta
from kvstitch.service.worker.model.gated_delta import Map

HEADS, KEY, VALUE = 3, 16, 8
Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def rows(m: int, random: torch.Generator) -> Rows:
    """Queries, keys, values, log decay and beta; states forget half in about 14 rows."""

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    k = gated_delta.normalised(noise(m, HEADS, KEY))
    rates = torch.rand(2, m, HEADS, generator=random)
    return noise(m, HEADS, KEY) / KEY**0.5, k, noise(m, HEADS, VALUE), -0.1 * rates[0], rates[1]


def one_by_one(given: Rows, state: Tensor) -> tuple[Tensor, Tensor]:
    read = []
    for q, k, v, decay, beta in zip(*(x.double() for x in given), strict=True):
        out = torch.empty(HEADS, VALUE, dtype=torch.float64)
        for head in range(HEADS):
            kept = state[head] * decay[head].exp()
            wrong = v[head] - kept.T @ k[head]
            state = state.clone()
            state[head] = kept + beta[head] * torch.outer(k[head], wrong)
            out[head] = state[head].T @ q[head]
        read.append(out)
    return torch.stack(read), state


def mapped(given: Rows) -> Map:
    eye, zero = torch.eye(KEY).expand(HEADS, -1, -1), torch.zeros(HEADS, KEY, VALUE)
    _, after = gated_delta.run(*given, torch.cat([zero, eye], -1))
    return Map(after[..., VALUE:], after[..., :VALUE])


@pytest.mark.parametrize("m", [1, 63, 64, 65, 200])
def test_blocks_are_rows_one_by_one(m: int) -> None:
    random = torch.Generator().manual_seed(m)
    given, state = rows(m, random), torch.randn(HEADS, KEY, VALUE, generator=random)
    read, after = gated_delta.run(*given, state)
    expected, last = one_by_one(given, state.double())
    assert float((read - expected).abs().max()) < 2e-5
    assert float((after - last).abs().max()) < 2e-5
    q, k, v, decay, beta = (x[:1] for x in given)
    one, stepped = gated_delta.step(q, k, v, decay, beta, state[None].clone())
    assert float((one[0] - expected[0]).abs().max()) < 2e-5
    behind_one = one_by_one((q, k, v, decay, beta), state.double())[1]
    assert float((stepped[0] - behind_one).abs().max()) < 2e-5


def test_four_chunks_in_all_orders_are_the_state_of_all_their_rows() -> None:
    random = torch.Generator().manual_seed(0)
    chunks = [rows(m, random) for m in (70, 5, 128, 33)]
    first = torch.randn(HEADS, KEY, VALUE, generator=random)
    maps = [mapped(chunk) for chunk in chunks]
    for order in permutations(range(4)):
        joined: Rows = tuple(torch.cat([chunks[i][part] for i in order]) for part in range(5))  # type: ignore[assignment]
        expected = one_by_one(joined, first.double())[1]
        state, whole = first, maps[order[0]]
        for number, i in enumerate(order):
            state = maps[i].of(state)
            whole = whole.then(maps[i]) if number else whole
        for composed in (state, whole.of(first)):
            assert float((composed - expected).abs().max()) < 2e-5
        assert float((state - maps[order[-1]].of(None)).abs().max()) > 1e-6, "order matters"
