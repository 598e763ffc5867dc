"""Recorded layers against unrecorded ones. Without a GPU they run on one that is pretended
(`benchmarks.launches`): what was computed while it recorded is computed again in the same memory,
without asking Python, which is what a CUDA graph does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.launches.driver import pretended_gpu
from benchmarks.launches.gpu import CUDA, host
from benchmarks.launches.prefills import Case, _model, _Move
from benchmarks.launches.tally import Tally
from service.worker.api import DecoderModel, decoder_for
from service.worker.forward.prefill_graphs import (
    MAX_ROWS,
    PrefillGraphs,
    Shape,
    bucket,
    layer_groups,
    supports,
)
from service.worker.kv.pool import KVPool, SequenceKV
from service.worker.model.attention import attend_rows, attend_with_scores

LAYERS = 6
TOKENS = 300
PASS = range(3, 5)


def test_a_bucket_is_at_most_a_third_larger() -> None:
    found = {rows: bucket(rows) for rows in range(1, MAX_ROWS + 1)}
    taken = {rows: padded for rows, padded in found.items() if padded is not None}
    assert sorted(found.keys() - taken.keys()) == [1, 2, 3, 4, 5]
    assert all(rows <= padded and 3 * padded <= 4 * rows for rows, padded in taken.items())
    assert list(taken.values()) == sorted(taken.values())
    assert len(set(taken.values())) <= 30
    assert bucket(MAX_ROWS + 1) is None


@pytest.mark.parametrize("layers", [1, 2, 4, 5, 16, 17, 31, 80])
def test_groups_are_all_layers_in_order(layers: int) -> None:
    groups = layer_groups(layers)
    assert [layer for group in groups for layer in group] == list(range(layers))
    assert [group.start for group in groups] == [0, 1, 4, 16, 32, 48, 64][: len(groups)]


def test_a_shape_begins_where_a_group_does() -> None:
    assert Shape(8, 4, 20).groups == [range(4, 16), range(16, 20)]
    assert Shape(8, 0, 3).groups == [range(1), range(1, 3)]


@dataclass
class Rig:
    """A decoder and two prompts in its pool, which is filled with random KV."""

    decoder: DecoderModel
    pool: KVPool
    kv: SequenceKV
    graphs: PrefillGraphs
    gpu: Any = None

    def recorded(self, shape: Shape | None) -> Shape:
        """Record everything of a shape, as spare time does."""
        assert shape is not None
        with self.graphs.replay(shape, self.kv, rows=torch.arange(1), tokens=1) as replay:
            assert replay is None  # it is wanted from now on
        while not self.graphs.idle:
            self.graphs.advance()
        return shape

    def wanted(self, rows: int, *, scored: range = range(0), first: int = 0) -> Shape | None:
        stop = scored.stop if len(scored) else LAYERS - 1
        return self.graphs.shape(rows, first, stop, scored=scored, tokens=TOKENS)


@contextmanager
def rig(record: Any = None) -> Iterator[Rig]:
    decoder = decoder_for(_model(Case(layers=LAYERS, tokens=512)))
    with pretended_gpu(Tally()) as gpu:
        _Move(gpu).everything_in(decoder)
        decoder.device = CUDA
        yield filled(decoder, record or gpu.record, gpu)


def filled(decoder: DecoderModel, record: Any = None, gpu: Any = None) -> Rig:
    pool = KVPool(
        decoder.layers, decoder.kv_heads, decoder.head_dim, 3 * TOKENS, dtype=decoder.dtype,
        device=decoder.device,
    )  # fmt: skip
    random = torch.Generator().manual_seed(1)
    for x in (pool.all_k, pool.all_v):
        x.copy_(torch.randn(x.shape, generator=random).to(x.dtype))
    before, kv = pool.reserve(50), pool.reserve(TOKENS + 20)
    assert before is not None and kv is not None
    assert supports(decoder, pool)
    return Rig(decoder, pool, kv, PrefillGraphs(decoder, pool, record), gpu)


def numbers(x: Tensor) -> Tensor:
    """A copy of it in host memory."""
    return host(x).clone().cpu()


def unrecorded(rig: Rig, rows: Tensor, ids: Tensor, weights: Tensor, shape: Shape) -> list[Tensor]:
    """Hidden states, scores and the whole pool afterwards, layer by layer on this prompt's KV."""
    decoder, there = rig.decoder, rows.to(rig.decoder.device)
    x, scores = decoder.embed(ids.to(decoder.device)), []
    for layer in range(shape.stop):
        k_all, v_all = rig.kv.prompt_layer(layer, TOKENS)
        q, k, v = decoder.qkv(layer, x)
        rope = decoder.ropes[layer]
        k_all[:, there], v_all[:, there] = rope.rotate(k, there).transpose(0, 1), v.transpose(0, 1)
        q = rope.rotate(q, there)
        if layer in shape.scored:
            attended, scored = attend_with_scores(q, k_all, v_all, there, weights, decoder.scale)
            scores.append(scored)
        else:
            attended = attend_rows(q, k_all, v_all, there, decoder.scale)
        if layer + 1 < shape.stop or not scores:
            x = decoder.finish(layer, x, attended)
    return [x, *scores, rig.pool.all_k, rig.pool.all_v]


def compare(rig: Rig, count: int, scored: range, tolerance: float) -> None:
    """Raises AssertionError where a replay differs from layers that are computed one by one."""
    shape = rig.recorded(rig.wanted(count, scored=scored))
    assert shape.rows >= count
    random = torch.Generator().manual_seed(count)
    for attempt in range(2):  # other rows by the same recording
        rows = torch.randperm(TOKENS - 1, generator=random)[:count].sort().values
        ids = torch.randint(rig.decoder.vocabulary, (count,), generator=random)
        weights = torch.rand(count, generator=random).to(rig.decoder.device)
        before = numbers(rig.pool.all_k), numbers(rig.pool.all_v)
        expected = [numbers(x) for x in unrecorded(rig, rows, ids, weights, shape)]
        for x, was in zip((rig.pool.all_k, rig.pool.all_v), before, strict=True):
            x.copy_(was)
        with rig.graphs.replay(
            shape, rig.kv, rows=rows, tokens=TOKENS, ids=ids, weights=weights
        ) as replay:
            assert replay is not None, attempt
            for group in shape.groups:
                replay.play(group)
            scores = [numbers(x) for x in replay.scores(TOKENS)]
            found = [numbers(replay.x), *scores, numbers(rig.pool.all_k), numbers(rig.pool.all_v)]
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            off = float((ours.float() - theirs.float()).abs().max())
            assert off <= tolerance * float(theirs.float().abs().max())
        # Whatever stands elsewhere in the pool is as it was: padding writes nowhere.
        for ours, theirs, was in zip(found[-2:], expected[-2:], before, strict=True):
            same = (theirs == was).all(-1)
            assert ours[same].equal(was[same]) and int((~same).sum()) == (
                count * rig.decoder.kv_heads * shape.stop
            )


@pytest.mark.parametrize("count", [6, 7, 8, 30])
@pytest.mark.parametrize("scored", [range(0), PASS], ids=["layers", "question pass"])
def test_what_is_replayed_is_what_is_computed(count: int, scored: range) -> None:
    with rig() as made:
        compare(made, count, scored, 2**-6)


def test_a_replay_asks_for_one_launch_a_group() -> None:
    with rig() as made:
        shape = made.recorded(made.wanted(8))
        tally = made.gpu.tally
        rows = torch.arange(100, 108)
        with made.graphs.replay(shape, made.kv, rows=rows, tokens=TOKENS, ids=rows) as replay:
            assert replay is not None
            tally.start()
            for group in shape.groups:
                replay.play(group)
            assert tally.by_kind()["device operations"] == len(shape.groups) == 3


def test_a_later_layer_takes_hidden_states() -> None:
    """The second group by itself gives what it gives behind the first."""
    with rig() as made:
        whole, part = made.recorded(made.wanted(8)), made.recorded(made.wanted(8, first=1))
        rows = torch.arange(100, 108)
        with made.graphs.replay(whole, made.kv, rows=rows, tokens=TOKENS, ids=rows) as replay:
            assert replay is not None
            replay.play(whole.groups[0])
            x = replay.x
            for group in whole.groups[1:]:
                replay.play(group)
            expected = numbers(replay.x)
        with made.graphs.replay(part, made.kv, rows=rows, tokens=TOKENS, x=x) as replay:
            assert replay is not None and part.groups == whole.groups[1:]
            for group in part.groups:
                replay.play(group)
            assert numbers(replay.x).equal(expected)


def test_two_prompts_do_not_share_a_recording() -> None:
    with rig() as made:
        shape, rows = made.recorded(made.wanted(8)), torch.arange(8)
        asked: dict[str, Any] = {"rows": rows, "tokens": TOKENS, "ids": rows}
        again = made.graphs.replay(shape, made.kv, **asked)
        with made.graphs.replay(shape, made.kv, **asked) as first, again as second:
            assert first is not None and second is None
        with made.graphs.replay(shape, made.kv, **asked) as third:
            assert third is not None


def test_another_pool_is_not_replayed() -> None:
    with rig() as made:
        shape, rows = made.recorded(made.wanted(8)), torch.arange(8)
        other = filled(made.decoder, made.gpu.record).kv
        for kv in (other, object()):
            with made.graphs.replay(shape, kv, rows=rows, tokens=TOKENS, ids=rows) as replay:
                assert replay is None


def test_a_full_pool_is_tried_again_later() -> None:
    with rig() as made:
        rest = made.pool.reserve(made.pool.free_tokens)
        assert rest is not None
        made.recorded(made.wanted(8))
        rows = torch.arange(8)
        asked: dict[str, Any] = {"rows": rows, "tokens": TOKENS, "ids": rows}
        with made.graphs.replay(made.wanted(8), made.kv, **asked) as replay:
            assert replay is None
        rest.release()
        while not made.graphs.idle:
            made.graphs.advance()
        with made.graphs.replay(made.wanted(8), made.kv, **asked) as replay:
            assert replay is not None


@pytest.mark.parametrize("fault", ["differs", "no number", "fails"])
def test_what_is_not_right_is_not_replayed(caplog: pytest.LogCaptureFixture, fault: str) -> None:
    def record(run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], Any]]:
        if fault == "fails":
            raise RuntimeError("operation not permitted when stream is capturing")
        out = run()
        spoil = {"differs": 1.5, "no number": float("nan")}[fault]
        return out, lambda: out.copy_(run() * spoil)

    with rig(record) as made:
        shape, rows = made.wanted(8), torch.arange(8)
        asked: dict[str, Any] = {"rows": rows, "tokens": TOKENS, "ids": rows}
        with made.graphs.replay(shape, made.kv, **asked):
            pass
        with pytest.raises(RuntimeError) as raised:
            made.graphs.advance()
        made.graphs.fail_current(raised.value)
        assert "prefills run unrecorded" in caplog.text and made.graphs.idle
        assert made.wanted(8) is None
        with made.graphs.replay(shape, made.kv, **asked) as replay:
            assert replay is None and made.graphs.idle
        assert made.pool.free_tokens == 2 * TOKENS - 70


def test_what_a_gpu_cannot_record_is_refused_here_too() -> None:
    """So that a layer that asks the host for something fails a test."""
    with rig() as made:
        x = torch.arange(3).to("cuda")
        asks: list[Callable[[], Any]] = [
            x.tolist, lambda: x.cpu(), lambda: int(x[0]), lambda: torch.nonzero(x),
            lambda: x.copy_(torch.arange(3)), lambda: x[torch.tensor([0])],
        ]  # fmt: skip
        for ask in asks:
            with pytest.raises(RuntimeError, match="not permitted"):
                made.gpu.record(lambda ask=ask: ask())


def test_nothing_is_recorded_on_a_cpu() -> None:
    decoder = decoder_for(_model(Case(layers=2, tokens=64)))
    pool = KVPool(2, decoder.kv_heads, decoder.head_dim, 64, dtype=decoder.dtype,
                  device=decoder.device)  # fmt: skip
    assert not supports(decoder, pool)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("scored", [range(0), PASS], ids=["layers", "question pass"])
def test_on_the_gpu(scored: range) -> None:
    """CUDA graphs in bfloat16 against layers that are computed there one by one."""
    with torch.inference_mode():
        decoder = decoder_for(_model(Case(layers=LAYERS, tokens=512)).cuda())
        compare(filled(decoder), 30, scored, 2**-5)
