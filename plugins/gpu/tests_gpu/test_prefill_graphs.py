"""Recorded layers against unrecorded ones. Without a GPU they run on one that is pretended
(`benchmarks.launches`): what was computed while it recorded is computed again in the same memory,
without asking Python, which is what a CUDA graph does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.launches.driver import Recorder, pretended_gpu
from benchmarks.launches.gpu import CUDA, host
from benchmarks.launches.prefills import Case, _model, _Move
from benchmarks.launches.tally import Tally
from kvstitch.service.worker.api import DecoderModel, decoder_for
from kvstitch.service.worker.kv.pool import KVPool, SequenceKV
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.model.attention import attention_probabilities, weighted_values
from kvstitch.service.worker.model.rope import RotaryTable
from kvstitch_gpu import prefill_graphs
from kvstitch_gpu.prefill_graphs import PrefillGraphs
from kvstitch_gpu.recorded_layers import supports
from kvstitch_gpu.recorded_tensors import (
    FEW_ROWS,
    MAX_ROWS,
    SHIFTED_DOCUMENTS,
    Given,
    Shape,
    bucket,
    layer_groups,
)
from kvstitch_gpu.shift_gpu import KernelShift
from tests_gpu.kernels.interpreter import needs_gpu

pytestmark = pytest.mark.exhaustive

LAYERS = 6
TOKENS = 300
PASS = range(3, 5)


def test_a_bucket_is_at_most_a_third_larger() -> None:
    found = {rows: bucket(rows) for rows in range(1, MAX_ROWS + 1)}
    taken = {rows: padded for rows, padded in found.items() if padded is not None}
    assert sorted(found.keys() - taken.keys()) == [1, 2, 3, 4, 5]
    assert all(rows <= padded and 3 * padded <= 4 * rows for rows, padded in taken.items())
    assert all(16 * padded <= 17 * rows for rows, padded in taken.items() if rows > FEW_ROWS)
    assert list(taken.values()) == sorted(taken.values())
    assert len(set(taken.values())) <= 70
    assert bucket(MAX_ROWS + 1) is None


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("layers", [1, 2, 4, 5, 16, 17, 31, 80])
def test_groups_are_all_layers_in_order(layers: int, first: int) -> None:
    groups = layer_groups(first, first + layers)
    assert [layer for group in groups for layer in group] == list(range(first, first + layers))
    starts = [first + start for start in (0, 1, 8, 22, 32, 42, 52, 62, 72)]
    assert [group.start for group in groups] == starts[: len(groups)]


def test_layers_are_replayed_in_the_groups_in_which_they_are_copied() -> None:
    assert Shape(8, 0, 20, 2048).groups == [range(1), range(1, 8), range(8, 20)]
    assert Shape(8, 0, 1, 2048).groups == [range(1)]
    # The layer whose attention comes first needs no stored layer.
    begun = Shape(8, 1, 32, 2048, from_attention=True, copied_from=2)
    assert begun.groups == [range(1, 3), range(3, 10), range(10, 24), range(24, 32)]
    begun = Shape(8, 1, 32, 2048, from_attention=True, copied_from=1)
    assert begun.groups == [range(1, 9), range(9, 23), range(23, 32)]


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
        with self.graphs.replay(shape, self.kv, Given(rows=torch.arange(1), tokens=1)) as replay:
            assert replay is None  # it is wanted from now on
        while not self.graphs.idle:
            self.graphs.advance()
        return shape

    def wanted(self, rows: int, stop: int = LAYERS - 1, first: int = 0) -> Shape | None:
        return self.graphs.shape(rows, first, stop, tokens=TOKENS)


@contextmanager
def rig(record: Any = None) -> Iterator[Rig]:
    decoder = decoder_for(_model(Case(layers=LAYERS, tokens=512)))
    with pretended_gpu(Tally()) as gpu:
        _Move(gpu).everything_in(decoder)
        decoder.device = CUDA
        yield filled(decoder, record or Recorder(gpu), gpu)


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


def layer_by_layer(rig: Rig, given: Given, shape: Shape) -> list[Tensor]:
    """Hidden states or logits, scores, and the whole pool afterwards; layer by layer, in torch."""
    decoder, rows = rig.decoder, given.rows.to(rig.decoder.device)
    scores: list[Tensor] = []
    x = given.x if given.ids is None else decoder.embed(given.ids.to(decoder.device))
    assert x is not None
    for layer in range(shape.first, shape.stop):
        k_all, v_all = rig.kv.prompt_layer(layer, given.tokens)
        rope, seen = decoder.ropes[layer], rows
        if shape.from_attention and layer == shape.first:
            assert given.q is not None
            q = given.q
        else:
            q, k, v = decoder.qkv(layer, x)
            old = k_all[:, rows].transpose(0, 1), v_all[:, rows].transpose(0, 1)
            k_all[:, rows] = rope.rotate(k, rows).transpose(0, 1)
            v_all[:, rows] = v.transpose(0, 1)
            q = rope.rotate(q, rows)
            if given.shift is not None and layer:
                move((k_all, v_all), (k, v), old, rows, given.shift, rope)
        if shape.answers and layer + 1 == shape.stop:
            x, q, seen = x[-1:], q[-1:], rows[-1:]
        weights = attention_probabilities(q, k_all, seen, decoder.scale)
        if layer in shape.scored:
            assert given.weights is not None
            scores.append(torch.einsum("hmn,m->n", weights, given.weights))
        if shape.is_finished(layer):
            x = decoder.finish(layer, x, weighted_values(weights, v_all))
    return [decoder.logits(x) if shape.answers else x, *scores, rig.pool.all_k, rig.pool.all_v]


def move(
    kv: tuple[Tensor, Tensor], fresh: tuple[Tensor, Tensor], old: tuple[Tensor, Tensor],
    rows: Tensor, shift: KernelShift, rope: RotaryTable,
) -> None:  # fmt: skip
    """Moves what is not computed of each document by its probes' mean of fresh minus stored."""
    for document in shift.documents:
        places = document.places.to(rows.device)
        low, high = old[0][places].float().chunk(2, -1)
        cos, sin = (x[rows[places]][:, None] for x in (rope.cos, rope.sin))
        stored = torch.cat([low * cos + high * sin, high * cos - low * sin], -1), old[1][places]
        span = torch.arange(document.span.start, document.span.stop)
        span = span[shift.moved[span]].to(rows.device)
        for x, new, was in zip(kv, fresh, stored, strict=True):
            by = (new[places].float() - was.float()).mean(0, keepdim=True) * shift.weight
            by = by.expand(len(span), -1, -1).to(x.dtype)
            moved = rope.rotate(by.contiguous(), span) if x is kv[0] else by
            x[:, span] = x[:, span] + moved.transpose(0, 1)


def asked(rig: Rig, kind: str, count: int, random: torch.Generator) -> tuple[Shape, Given]:
    """Rows of a prompt, and the shape that they fit."""
    decoder = rig.decoder

    def some(*size: int) -> Tensor:
        return torch.randn(*size, generator=random).to(decoder.device, decoder.dtype)

    tokens = count if kind.startswith("every") else TOKENS
    rows = torch.randperm(TOKENS - 1, generator=random)[:count].sort().values
    given = Given(
        rows=torch.arange(count) if tokens == count else rows,
        tokens=tokens,
        ids=torch.randint(decoder.vocabulary, (count,), generator=random),
    )
    first, stop, scored, begun = 0, LAYERS, range(0), kind == "from attention"
    if kind == "question pass":
        scored, stop = PASS, PASS.stop
        given = replace(given, weights=torch.rand(count, generator=random).to(decoder.device))
    if kind in ("hidden states", "every row, first layers"):
        stop = 2
    if begun:
        first, q = 1, some(count, decoder.heads, decoder.head_dim)
        given = replace(given, ids=None, x=some(count, decoder.hidden), q=q)
    if kind == "shifted":
        question = TOKENS // 2
        layout = PromptLayout.of(
            [0] * 20, [[0] * 90, [0] * (question - 110)], [0] * (TOKENS - question),
            uncached=[False] * 3,
        )  # fmt: skip
        cached: list[Any] = [None, object(), object()]
        probes = rows[(rows >= 20) & (rows < question)]
        given = replace(given, shift=KernelShift.of(layout, cached, rows, probes, 0.25))
    shape = rig.graphs.shape(
        count, first, stop, tokens=tokens, scored=scored, from_attention=begun,
        shift=given.shift, copied_from=2 * begun,
    )  # fmt: skip
    assert shape is not None and shape.rows >= count
    return shape, given


def compare(rig: Rig, count: int, kind: str, tolerance: float) -> None:
    """Raises AssertionError where a replay differs from layers that are computed one by one."""
    random = torch.Generator().manual_seed(count)
    known = rig.recorded(asked(rig, kind, count, random)[0])
    for _ in range(2):  # other rows by the same recording
        shape, given = asked(rig, kind, count, random)
        assert shape == known
        for x in (rig.pool.all_k, rig.pool.all_v):
            x.copy_(torch.randn(x.shape, generator=random).to(x.dtype))
        before = numbers(rig.pool.all_k), numbers(rig.pool.all_v)
        expected = [numbers(x) for x in layer_by_layer(rig, given, shape)]
        for x, was in zip((rig.pool.all_k, rig.pool.all_v), before, strict=True):
            x.copy_(was)
        with rig.graphs.replay(shape, rig.kv, given) as replay:
            assert replay is not None
            for group in shape.groups:
                replay.play(group)
            result = replay.logits[None] if shape.answers else replay.x
            scores: Any = replay.scores(given.tokens) if len(shape.scored) else []
            found = [*map(numbers, [result, *scores, rig.pool.all_k, rig.pool.all_v])]
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            off = float((ours.float() - theirs.float()).abs().max())
            assert off <= tolerance * float(theirs.float().abs().max())
        # Whatever stands elsewhere in the pool is as it was: padding writes nowhere.
        written = count * (shape.stop - shape.first - shape.from_attention)
        if given.shift is not None:
            assert given.shift.moved.any()
            written += int(given.shift.moved.sum()) * (shape.stop - 1)
        for ours, theirs, was in zip(found[-2:], expected[-2:], before, strict=True):
            same = (theirs == was).all(-1)
            assert ours[same].equal(was[same])
            assert int((~same).sum()) == written * rig.decoder.kv_heads


KINDS = (
    "hidden states", "logits", "question pass", "every row", "every row, first layers",
    "from attention", "shifted",
)  # fmt: skip


@pytest.mark.parametrize("count", [30, *(pytest.param(n, marks=pytest.mark.slow) for n in (6, 8))])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_replayed_is_what_is_computed(count: int, kind: str) -> None:
    with rig() as made:
        compare(made, count, kind, 2**-6)


def test_more_documents_than_a_recording_has_room_for() -> None:
    with rig() as made:
        documents = [[0]] * 2 * (SHIFTED_DOCUMENTS + 32)
        layout = PromptLayout.of([], documents, [0], uncached=[False] * (1 + len(documents)))
        cached: list[Any] = [None, *([object()] * len(documents))]
        rows = torch.arange(0, len(documents), 2)
        shift = KernelShift.of(layout, cached, rows, rows, 0.25)
        many = made.graphs.shape(8, 0, LAYERS, tokens=len(documents) + 1, shift=shift)
        few = replace(shift, documents=shift.documents[:2])
        assert many is not None
        assert made.graphs.shape(8, 0, LAYERS, tokens=len(documents) + 1, shift=few) == many
        more = replace(shift, documents=list(shift.documents) * 2)
        assert made.graphs.shape(8, 0, LAYERS, tokens=len(documents) + 1, shift=more) is None


def test_what_is_slower_is_not_used() -> None:
    class Slow(Recorder):
        def seconds(self, run: Callable[[], object]) -> float:
            return -super().seconds(run)

    with rig() as made:
        made.graphs = PrefillGraphs(made.decoder, made.pool, Slow(made.gpu))
        shape, rows = made.recorded(made.wanted(8)), torch.arange(8)
        with made.graphs.replay(shape, made.kv, Given(rows=rows, tokens=TOKENS, ids=rows)) as none:
            assert none is None and made.graphs.idle  # nor is it recorded again


def test_shapes_that_were_not_used_for_long_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_graphs, "MAX_SHAPES", 2)
    with rig() as made:
        shapes = [made.recorded(made.wanted(rows, stop=1)) for rows in (8, 10, 12)]
        for shape, there in ((shapes[1], True), (shapes[2], True), (shapes[0], False)):
            given = Given(rows=torch.arange(8), tokens=TOKENS, ids=torch.arange(8))
            with made.graphs.replay(shape, made.kv, given) as replay:
                assert (replay is not None) == there


def test_a_replay_asks_for_one_launch_a_group() -> None:
    with rig() as made:
        shape = made.recorded(made.wanted(8))
        tally = made.gpu.tally
        rows = torch.arange(100, 108)
        with made.graphs.replay(
            shape, made.kv, Given(rows=rows, tokens=TOKENS, ids=rows)
        ) as replay:
            assert replay is not None
            tally.start()
            for group in shape.groups:
                replay.play(group)
            assert tally.by_kind()["device operations"] == len(shape.groups) == 2


def test_a_later_layer_takes_hidden_states() -> None:
    """The second group by itself gives what it gives behind the first."""
    with rig() as made:
        whole, part = made.recorded(made.wanted(8)), made.recorded(made.wanted(8, first=1))
        rows = torch.arange(100, 108)
        with made.graphs.replay(
            whole, made.kv, Given(rows=rows, tokens=TOKENS, ids=rows)
        ) as replay:
            assert replay is not None
            replay.play(whole.groups[0])
            x = replay.x
            for group in whole.groups[1:]:
                replay.play(group)
            expected = numbers(replay.x)
        with made.graphs.replay(part, made.kv, Given(rows=rows, tokens=TOKENS, x=x)) as replay:
            assert replay is not None and part.groups == whole.groups[1:]
            for group in part.groups:
                replay.play(group)
            assert numbers(replay.x).equal(expected)


def test_two_prompts_do_not_share_a_recording() -> None:
    with rig() as made:
        shape, rows = made.recorded(made.wanted(8)), torch.arange(8)
        asked = Given(rows=rows, tokens=TOKENS, ids=rows)
        again = made.graphs.replay(shape, made.kv, asked)
        with made.graphs.replay(shape, made.kv, asked) as first, again as second:
            assert first is not None and second is None
        with made.graphs.replay(shape, made.kv, asked) as third:
            assert third is not None


def test_another_pool_is_not_replayed() -> None:
    with rig() as made:
        shape, rows = made.recorded(made.wanted(8)), torch.arange(8)
        other = filled(made.decoder, Recorder(made.gpu)).kv
        for kv in (other, object()):
            with made.graphs.replay(shape, kv, Given(rows=rows, tokens=TOKENS, ids=rows)) as replay:
                assert replay is None


def test_a_full_pool_is_tried_again_later() -> None:
    with rig() as made:
        rest = made.pool.reserve(made.pool.free_tokens)
        assert rest is not None
        made.recorded(made.wanted(8))
        rows = torch.arange(8)
        asked = Given(rows=rows, tokens=TOKENS, ids=rows)
        with made.graphs.replay(made.wanted(8), made.kv, asked) as replay:
            assert replay is None
        rest.release()
        while not made.graphs.idle:
            made.graphs.advance()
        with made.graphs.replay(made.wanted(8), made.kv, asked) as replay:
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
        asked = Given(rows=rows, tokens=TOKENS, ids=rows)
        with made.graphs.replay(shape, made.kv, asked):
            pass
        with pytest.raises(RuntimeError) as raised:
            while not made.graphs.idle:
                made.graphs.advance()
        made.graphs.fail_current(raised.value)
        assert "prefills run unrecorded" in caplog.text and made.graphs.idle
        assert made.wanted(8) is None
        with made.graphs.replay(shape, made.kv, asked) as replay:
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


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("count", [30, 250])
@pytest.mark.parametrize("kind", KINDS)
def test_on_the_gpu(kind: str, count: int) -> None:
    """CUDA graphs in bfloat16 against layers that are computed there one by one."""
    with torch.inference_mode():
        decoder = decoder_for(_model(Case(layers=LAYERS, tokens=512)).cuda())
        compare(filled(decoder), count, kind, 2**-5)
