"""Copies of stored layers to a GPU. Here the device is the CPU: tested is what is copied when and
in which form, and that answers do not depend on it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from kvstitch.kvstore import (
    ChunkSpec,
    EncodedChunk,
    MemoryTier,
    ReadOutcome,
    TieredStore,
    encode_chunk,
)
from kvstitch.service.messages.requests import Method
from kvstitch.service.worker.kernels.device_kernels import DeviceKernels
from kvstitch.service.worker.loading import chunk_stream as streaming
from kvstitch.service.worker.loading.chunk_stream import ChunkStream
from kvstitch.service.worker.model.addressing import Address
from kvstitch.service.worker.model.rope import Rotation
from kvstitch_gpu import gpu_kernels, kv_placement_gpu
from kvstitch_gpu import transfers as transferring
from kvstitch_gpu.gpu_kernels import GpuPlacer
from kvstitch_gpu.kv_placement_gpu import Placement, Target
from kvstitch_gpu.transfers import InTurn, StagedLayers, Transfers
from tests.kvstore.chunks import encoded
from tests.service.plugins.loaded import plugins
from tests.service.worker.engines import A3, PIE, disk, rig
from tests.service.worker.loading.test_streaming import names
from tests.service.worker.tiny import Tiny
from tests_gpu import on_cpu

Parts = tuple[Sequence[Tensor], Sequence[Tensor]]
"""Keys and values of a segment, each as its values or as codes and scales."""

CPU = torch.device("cpu")
LAYERS = 3


@dataclass
class RecordingSide(InTurn):
    """A side that records the calls of its methods."""

    events: list[str] = field(default_factory=list)

    @contextmanager
    def copying(self) -> Iterator[None]:
        self.events.append("copy")
        yield

    def needed(self) -> None:
        self.events.append("wait")

    def finish(self) -> None:
        self.events.append("finish")


def chunk_of(codec: str, seed: int = 0, layers: int = LAYERS) -> EncodedChunk:
    spec = ChunkSpec("model", codec, "bfloat16", layers, 2, 32, 70)
    random = torch.Generator().manual_seed(seed)
    k, v = (
        [torch.randn(spec.shape, generator=random).bfloat16() for _ in range(layers)] for _ in "kv"
    )
    return encode_chunk(spec, k, v)


def in_parts(chunk: EncodedChunk, tmp_path: Path, parts: int, *, decode: bool) -> ChunkStream:
    """A stream of which so many layers came, one by one, from a disk."""
    stream = ChunkStream(Address("", chunk.spec, (), ()), "ssd", decode=decode)
    key = "0" * 32
    with TieredStore([disk(tmp_path)]) as store:
        store.put(key, chunk)
        store.flush()
        for part in range(parts):
            stream.part(part, store.read_blocks(key, {part: range(chunk.spec.blocks)}))
    return stream


@pytest.fixture(autouse=True)
def every_layer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PART_BYTES", 1)


def test_the_next_layer_is_copied_ahead() -> None:
    side = RecordingSide()
    chunks = [chunk_of("raw"), chunk_of("int8", seed=1)]
    transfers = transfers_of(chunks, side, most=1)
    for layer in range(LAYERS):
        staged = transfers.group(layer)
        assert staged.layers == range(layer, layer + 1)
        for chunk, parts in zip(chunks, parts_of(staged), strict=True):
            assert_same(parts, encoded(chunk, layer))
        transfers.begin(layer + 1)
    transfers.finish()
    assert side.events == [*["copy", "wait"] * 3, "finish"]


@pytest.mark.parametrize("codec", ["raw", "int8", "int4"])
def test_groups_become_larger(codec: str) -> None:
    side, chunks = RecordingSide(), [chunk_of(codec, layers=12), chunk_of("raw", 1, layers=12)]
    transfers = transfers_of(chunks, side, layers=12)
    found: list[range] = []
    while (layer := found[-1].stop if found else 0) < 12:
        staged = transfers.group(layer)
        found.append(staged.layers)
        for number, one in enumerate(staged.layers):
            ours, raw = parts_of(staged, number=number)
            assert_same(raw, encoded(chunks[1], one))
            k, v = chunks[0].layer(one)
            assert_same(ours, ((k,), (v,)) if codec == "int4" else encoded(chunks[0], one))
        transfers.begin(staged.layers.stop)
    assert found == [range(1), range(1, 8), range(8, 12)]
    assert side.events == ["copy", "wait"] * 3


def test_large_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    nbytes = chunk_of("raw").layer_bytes(0).numel()
    monkeypatch.setattr(transferring, "GROUP_BYTES", 3 * nbytes)
    transfers, found = transfers_of([chunk_of("raw", layers=12)], layers=12), [range(0)]
    while found[-1].stop < 12:
        found.append(transfers.group(found[-1].stop).layers)
    assert [len(layers) for layers in found[1:]] == [1, 3, 3, 3, 2]
    assert len(transfers.group(0).buffer) < 4 * nbytes


def test_a_layer_that_was_not_copied_ahead_is_copied_when_it_is_needed() -> None:
    side = RecordingSide()
    transfers = transfers_of([chunk_of("raw")], side)
    transfers.begin(0)
    assert_same(parts_of(transfers.group(2))[0], encoded(chunk_of("raw"), 2))
    assert side.events == ["copy", "copy", "wait"]


def test_what_has_not_arrived_is_not_copied_ahead(tmp_path: Path) -> None:
    """Nor together with what has."""
    chunk, side = chunk_of("raw", layers=6), RecordingSide()
    stream = in_parts(chunk, tmp_path, 4, decode=False)
    transfers = transfers_of([chunk, stream], side, layers=6)
    for layer, group in ((0, range(1)), (1, range(1, 4))):
        assert transfers.group(layer).layers == group
    staged = transfers_of([chunk, stream], layers=6)
    for layer in (0, 1):
        staged.group(layer)
    assert staged.group(3).layers == range(3, 4)
    copies = len(side.events)
    transfers.begin(4)
    stream.lose()
    transfers.begin(2)
    assert len(side.events) == copies


@pytest.mark.parametrize("codec", ["raw", "int8", "int4"])
@pytest.mark.parametrize("kind", ["whole", "in parts", "in parts, decoded"])
def test_in_which_form(tmp_path: Path, codec: str, kind: str) -> None:
    """As it is stored, where the kernel decodes that; decoded on the device or before else."""
    chunk = chunk_of(codec)
    stored: Any
    if kind == "whole":
        stored = ChunkStream(Address("", chunk.spec, (), ()), None)
        stored.whole(ReadOutcome(chunk, "memory", 0, 0.0))
    else:
        stored = in_parts(chunk, tmp_path, LAYERS, decode=kind != "in parts")
    for layer in range(LAYERS):
        (parts,) = parts_of(transfers_of([stored]).group(layer))
        if codec in kv_placement_gpu.CODECS and kind != "in parts, decoded":
            assert_same(parts, encoded(chunk, layer))
        else:
            k, v = chunk.layer(layer)
            assert_same(parts, ((k,), (v,)))
        k, v = stored.layer(layer)
        assert k.equal(chunk.layer(layer)[0]) and v.equal(chunk.layer(layer)[1])


def transfers_of(
    segments: Sequence[Any],
    side: RecordingSide | None = None,
    *,
    layers: int = LAYERS,
    most: int = 16,
) -> Transfers:
    rows = [slice(70 * i, 70 * (i + 1)) for i in range(len(segments))]
    return Transfers(
        segments, rows, shape=(2, 32), dtype=torch.bfloat16, layers=layers, device=CPU, most=most,
        side=side,
    )  # fmt: skip


def parts_of(
    staged: StagedLayers,
    shape: tuple[int, int] = (2, 32),
    dtype: torch.dtype = torch.bfloat16,
    number: int = 0,
) -> list[Parts]:
    """The tensors of one of the staged layers, segment by segment."""
    heads, d = shape
    parts: list[Parts] = []
    for s in staged.placement.segments:

        def read(start: int, dtype: torch.dtype, *shape: int, layer: int = s.layer) -> Tensor:
            nbytes, start = dtype.itemsize * math.prod(shape), start + number * layer
            return staged.buffer[start : start + nbytes].view(dtype).view(shape)

        if s.scaled:
            codes = [read(start, torch.int8, s.tokens, heads, d) for start in (s.k, s.v)]
            scales = [
                read(start, torch.float16, s.tokens, heads) for start in (s.k_scale, s.v_scale)
            ]
            parts.append(((codes[0], scales[0]), (codes[1], scales[1])))
        else:
            k, v = (read(start, dtype, s.tokens, heads, d) for start in (s.k, s.v))
            parts.append(((k,), (v,)))
    return parts


def assert_same(ours: Parts, theirs: Sequence[Sequence[Tensor]]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        for one, another in zip(mine, other, strict=True):
            assert one.dtype == another.dtype and one.equal(another) and one.is_contiguous()


# -- whole answers --------------------------------------------------------------------------------


def place_in_torch(
    staged: Tensor, placement: Placement, target: Target, layers: int, *, positions: Tensor,
    cos: Tensor, sin: Tensor, staged_layer: int, layer: int,
) -> None:  # fmt: skip
    """What the Triton kernel does."""
    shape, dtype = (target.heads, 2 * cos.shape[1]), target.k.dtype
    whole = StagedLayers(range(layers), staged, placement)
    for number in range(layers):
        start = int(target.starts[layer + number])
        size = (target.heads, len(positions), shape[1])
        k_out, v_out = (
            x.as_strided(size, (target.of_head, target.of_row, 1), x.storage_offset() + start)
            for x in (target.k, target.v)
        )
        parts_of_layer = parts_of(whole, shape, dtype, staged_layer + number)
        for segment, parts in zip(placement.segments, parts_of_layer, strict=True):
            rows = slice(segment.row, segment.row + segment.tokens)
            at = positions[rows]
            rotate = Rotation(cos[at].unsqueeze(1), sin[at].unsqueeze(1))
            for stored, out in zip(parts, (k_out, v_out), strict=True):
                x = stored[0]
                if len(stored) == 2:
                    x = (x.float() * stored[1].float().unsqueeze(-1)).to(dtype)
                out[:, rows] = (rotate(x) if out is k_out else x).transpose(0, 1)


class Counted(Transfers):
    begun: ClassVar[list[int]] = []
    finished: ClassVar[int] = 0

    def begin(self, layer: int) -> None:
        super().begin(layer)
        if self._ahead is not None:
            Counted.begun += self._ahead.layers

    def finish(self) -> None:
        super().finish()
        Counted.finished += 1


class Placing(DeviceKernels):
    placer = GpuPlacer


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Placement goes through transfers."""
    monkeypatch.setattr(on_cpu, "KERNELS", Placing())
    monkeypatch.setattr(kv_placement_gpu, "supports", lambda kv: True)
    monkeypatch.setattr(kv_placement_gpu, "place", place_in_torch)
    monkeypatch.setattr(gpu_kernels, "Transfers", Counted)
    Counted.begun, Counted.finished = [], 0
    with plugins("tests_gpu.on_cpu"):
        yield


@pytest.mark.parametrize("method", [PIE, A3, Method("question_scout")], ids=names)
@pytest.mark.parametrize("codec", ["raw", "int8", "int4"])
def test_answers_are_those_without(
    model: Tiny, tmp_path: Path, request: pytest.FixtureRequest, method: Method, codec: str
) -> None:
    """From memory, and from a disk a layer at a time."""
    with rig(model, codec=codec) as r:
        r.precompute()
        expected, plain = r.answer(method, max_tokens=8)
    request.getfixturevalue("as_on_a_gpu")
    for tier in (MemoryTier(1 << 24), disk(tmp_path)):
        with rig(model, tiers=[tier], codec=codec, decode=False) as r:
            r.precompute()
            r.store.flush(20)
            Counted.begun, Counted.finished = [], 0
            tokens, report = r.answer(method, max_tokens=8)
        assert tokens == expected and Counted.finished == 1
        if tier.kind == "memory":
            # Two layers of A3 are computed before the first that is placed.
            first = 2 if method is A3 else 1
            assert Counted.begun == list(range(first, model.decoder.layers))
        assert report.flops == plain.flops
