"""The kernel that turns stored rows to their positions, against torch: the same to the bit."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch

from kvstitch.service.worker.forward.kv_placement import write_and_rotate, write_rows
from kvstitch.service.worker.kernels.cpu import native, rotation
from kvstitch.service.worker.model.rope import RotaryTable

ROWS, HEADS = 37, 3


pytestmark = pytest.mark.usefixtures("compiled")


def table(d: int) -> RotaryTable:
    return RotaryTable(10000.0 ** -(torch.arange(0, d, 2) / d), 1.25, 500)


@pytest.mark.parametrize("d", [32, 64, 96, 128])
def test_as_torch_to_the_bit(d: int) -> None:
    """From a stored chunk into a head-major cache, at positions in any order."""
    random = torch.Generator().manual_seed(d)
    turns = table(d)
    x = torch.randn(ROWS, HEADS + 1, d, generator=random).bfloat16()[:, 1:]
    x[3, 1, 2], x[4, 0, 0] = float("inf"), float("nan")
    positions = torch.randint(0, 500, (ROWS,), generator=random)
    expected = turns.at(positions)(x)
    cache = torch.zeros(HEADS, ROWS + 9, d).bfloat16()
    rotation.rotate(
        x,
        cache[:, 4 : 4 + ROWS].transpose(0, 1),
        positions=positions,
        cos=turns.cos,
        sin=turns.sin,
    )
    ours = cache[:, 4 : 4 + ROWS].transpose(0, 1)
    assert ours.isnan().equal(expected.isnan())
    assert ours.nan_to_num().equal(expected.nan_to_num())
    assert not cache[:, :4].any() and not cache[:, 4 + ROWS :].any()


def stored(random: torch.Generator, lengths: list[int], d: int) -> list[rotation.StoredSegment]:
    """Segments with a gap behind each, k and v in tensors that hold more than them."""
    segments, start = [], 2
    for n in lengths:
        k = torch.randn(n, HEADS + 1, d, generator=random).bfloat16()[:, 1:]
        v = torch.randn(n, HEADS, d + 32, generator=random).bfloat16()[..., :d]
        segments.append((start, k, v))
        start += n + 3
    return segments


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("lengths", [[], [1], [5, 1, 64], [2, 300, 41, 7]])
def test_segments_go_to_their_places(
    lengths: list[int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one by one by torch, to the bit, and nothing else is touched; threads share all rows,
    wherever a segment ends."""
    d, random = 64, torch.Generator().manual_seed(len(lengths))
    segments, turns = stored(random, lengths, d), table(d)
    n = 2 + sum(lengths) + 3 * len(lengths)
    positions = torch.randint(0, 500, (n,), generator=random)
    k_all, v_all = torch.full((2, HEADS, n + 5, d), 7.0).bfloat16()[:, :, :n]
    expected_k, expected_v = k_all.clone(), v_all.clone()
    for start, k, v in segments:
        span = slice(start, start + len(k))
        expected_k[:, span] = turns.at(positions[span])(k).transpose(0, 1)
        expected_v[:, span] = v.transpose(0, 1)
    monkeypatch.setattr(rotation, "MIN_PARALLEL", 1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        rotation.place(segments, k_all, v_all, positions=positions, cos=turns.cos, sin=turns.sin)
    finally:
        torch.set_num_threads(before)
    assert k_all.equal(expected_k) and v_all.equal(expected_v)


def test_other_segments_are_left_to_torch() -> None:
    segments = stored(torch.Generator().manual_seed(0), [4, 5], 64)
    cache, positions = torch.zeros(HEADS, 20, 64).bfloat16(), torch.arange(20)
    [(start, k, v), other] = segments
    assert rotation.supports_placement(segments, cache, cache, positions)
    assert rotation.supports_placement([], cache, cache, positions)
    assert not rotation.supports_placement([(start, k.float(), v), other], cache, cache, positions)
    assert not rotation.supports_placement([other, (start, k, v.float())], cache, cache, positions)
    assert not rotation.supports_placement(
        [(start, k.mT.contiguous().mT, v)], cache, cache, positions
    )
    assert not rotation.supports_placement([(start, k[:, 1:], v), other], cache, cache, positions)
    assert not rotation.supports_placement([(start, k, v[:-1]), other], cache, cache, positions)
    assert not rotation.supports_placement([(17, k, v)], cache, cache, positions)
    assert not rotation.supports_placement(segments, cache, cache[:, 1:], positions)
    assert not rotation.supports_placement(segments, cache, cache, positions[:-1])
    assert not rotation.supports_placement(segments, cache.float(), cache, positions)
    assert not rotation.supports_placement(segments, cache, cache.float(), positions)
    assert not rotation.supports_placement(segments, cache, cache.transpose(0, 1), positions)
    assert not rotation.supports_placement(segments, cache, cache, positions.int())
    assert not rotation.supports_placement(segments, cache, cache, torch.arange(40)[::2])
    small_heads = torch.zeros(HEADS, 20, 48).bfloat16()
    assert not rotation.supports_placement([], small_heads, small_heads, positions)


@pytest.mark.parametrize("rows", [[0], [3, 4, 5], [0, 7, 8, 30, 31]])
def test_rows_go_to_their_places(rows: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """With their queries, also such that lie between others: as by torch, to the bit, and nothing
    else is touched."""
    d, at, random = 64, torch.tensor(rows), torch.Generator().manual_seed(len(rows))
    [(_, k, v)], turns = stored(random, [len(rows)], d), table(d)
    q = torch.randn(len(rows), 7, d, generator=random).bfloat16()[:, 1:6]
    k_all, v_all = torch.full((2, HEADS, 40, d), 7.0).bfloat16()[:, :, :32]
    expected_k, expected_v = k_all.clone(), v_all.clone()
    expected_k[:, at] = turns.at(at)(k).transpose(0, 1)
    expected_v[:, at] = v.transpose(0, 1)
    used = Mock(wraps=rotation.write_with_queries)
    monkeypatch.setattr(rotation, "write_with_queries", used)
    assert write_and_rotate(turns, (k_all, v_all), q, k, v, at).equal(turns.at(at)(q))
    assert used.called and k_all.equal(expected_k) and v_all.equal(expected_v)


def test_other_rows_are_left_to_torch() -> None:
    [(_, k, v)] = stored(torch.Generator().manual_seed(0), [3], 64)
    cache, rows = torch.zeros(HEADS, 20, 64).bfloat16(), torch.tensor([0, 4, 19])
    assert rotation.supports_write(k, v, cache, cache, rows)
    assert not rotation.supports_write(k.float(), v, cache, cache, rows)
    assert not rotation.supports_write(k, v.float(), cache, cache, rows)
    assert not rotation.supports_write(k, v[:, 1:], cache, cache, rows)
    assert not rotation.supports_write(k, v, cache, cache, rows[:2])
    assert not rotation.supports_write(k, v, cache, cache, rows + 1)
    assert not rotation.supports_write(k, v, cache, cache, rows - 1)
    assert not rotation.supports_write(k, v, cache, cache, rows.int())
    assert not rotation.supports_write(k, v, cache, cache[:, :18], rows)
    assert not rotation.supports_write(k, v, cache.float(), cache, rows)
    assert not rotation.supports_write(k[:0], v[:0], cache, cache, rows[:0])


def test_a_cache_is_written_the_same_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    [(_, k, v)], turns = stored(torch.Generator().manual_seed(0), [3], 64), table(64)
    written = []
    for found in (None, native.module()):
        monkeypatch.setattr(native, "module", lambda found=found: found)
        for rows, n in ((torch.tensor([1, 4, 8]), 9), (torch.arange(3), 3)):
            k_all, v_all = torch.zeros(2, HEADS, n, 64).bfloat16()
            write_rows(turns, k_all, v_all, k, v, rows)
            written.append((k_all, v_all))
    for (k_one, v_one), (k_other, v_other) in zip(written[:2], written[2:], strict=True):
        assert k_one.any() and k_one.equal(k_other) and v_one.equal(v_other)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [1, 2, 211])
def test_threads_change_nothing(threads: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are fewer rows than threads."""
    monkeypatch.setattr(rotation, "MIN_PARALLEL", 1)
    turns, x = table(64), torch.randn(rows, 5, 64).bfloat16()[:, 1:4]
    positions = torch.randperm(500)[:rows]
    cache, before = torch.zeros(3, rows + 2, 64).bfloat16(), torch.get_num_threads()
    out = cache[:, 1:-1].transpose(0, 1)
    try:
        torch.set_num_threads(threads)
        rotation.rotate(x, out, positions=positions, cos=turns.cos, sin=turns.sin)
    finally:
        torch.set_num_threads(before)
    assert out.equal(turns.at(positions)(x))
    assert not cache[:, 0].any() and not cache[:, -1].any()


def test_few_rows_wake_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock()
    monkeypatch.setattr(native, "call", asked)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    turns = table(64)
    for rows, threads in ((1, 1), (rotation.MIN_PARALLEL // 64, 3)):
        x, positions = torch.zeros(rows, 1, 64).bfloat16(), torch.zeros(rows, dtype=torch.long)
        rotation.rotate(x, x, positions=positions, cos=turns.cos, sin=turns.sin)
        assert asked.call_args.args[-1] == threads


def test_the_table_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, x = table(64), torch.randn(5, 2, 64).bfloat16()
    positions, used = torch.arange(7, 12), Mock(wraps=rotation.rotate)
    monkeypatch.setattr(rotation, "rotate", used)
    assert turns.rotate(x, positions).equal(turns.at(positions)(x)) and used.called


def test_others_are_left_to_torch() -> None:
    x, positions = torch.randn(5, 2, 64).bfloat16(), torch.arange(5)
    assert not rotation.supports(x.float(), positions, x.float())
    assert not rotation.supports(x[..., :40], positions, x[..., :40])
    assert not rotation.supports(x, torch.arange(10)[::2], x)
    assert not rotation.supports(x, positions.int(), x)
