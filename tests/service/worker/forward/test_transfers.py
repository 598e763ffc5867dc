"""Copies of stored layers to a GPU. Here the device is the CPU: tested is what is copied when and
in which form, and that answers do not depend on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from kvstore import ChunkSpec, EncodedChunk, MemoryTier, ReadOutcome, TieredStore, encode_chunk
from service.records import Method
from service.worker.forward import kv_placement as place
from service.worker.forward.transfers import Parts, Transfers
from service.worker.kernels.gpu import kv_placement_gpu
from service.worker.loading import chunk_stream as streaming
from service.worker.loading.chunk_stream import ChunkStream
from service.worker.model.addressing import Address
from service.worker.model.rope import Rotation
from tests.service.worker.engines import A3, PIE, disk, rig
from tests.service.worker.loading.test_streaming import names
from tests.service.worker.tiny import Tiny

CPU = torch.device("cpu")
LAYERS = 3


@dataclass
class RecordingSide:
    """A side that records the calls of its methods."""

    events: list[str] = field(default_factory=list)

    @contextmanager
    def copying(self) -> Iterator[None]:
        self.events.append("copy")
        yield

    def needed(self, parts: Sequence[Parts]) -> None:
        self.events.append(f"wait for {len(parts)}")

    def finish(self) -> None:
        self.events.append("finish")


def chunk_of(codec: str, seed: int = 0) -> EncodedChunk:
    spec = ChunkSpec("model", codec, "bfloat16", LAYERS, 2, 32, 70)
    random = torch.Generator().manual_seed(seed)
    k, v = (
        [torch.randn(spec.shape, generator=random).bfloat16() for _ in range(LAYERS)] for _ in "kv"
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
    transfers = Transfers(chunks, LAYERS, CPU, side)
    for layer in range(LAYERS):
        for chunk, parts in zip(chunks, transfers.layer(layer), strict=True):
            assert_same(parts, chunk.encoded_layer(layer))
        transfers.begin(layer + 1)
    transfers.finish()
    waits = ["wait for 2"]
    assert side.events == ["copy", *waits, "copy", *waits, "copy", *waits, "finish"]


def test_a_layer_that_was_not_copied_ahead_is_copied_when_it_is_needed() -> None:
    side = RecordingSide()
    transfers = Transfers([chunk_of("raw")], LAYERS, CPU, side)
    transfers.begin(0)
    assert_same(transfers.layer(2)[0], chunk_of("raw").encoded_layer(2))
    assert side.events == ["copy", "copy", "wait for 1"]


def test_what_has_not_arrived_is_not_copied_ahead(tmp_path: Path) -> None:
    chunk, side = chunk_of("raw"), RecordingSide()
    stream = in_parts(chunk, tmp_path, 2, decode=False)
    transfers = Transfers([chunk, stream], LAYERS, CPU, side)
    transfers.begin(1)
    assert side.events == ["copy"]
    transfers.begin(2)
    assert side.events == ["copy"]
    stream.lose()
    transfers.begin(2)
    assert side.events == ["copy"]


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
        (parts,) = Transfers([stored], LAYERS, CPU).layer(layer)
        if codec in kv_placement_gpu.CODECS and kind != "in parts, decoded":
            assert_same(parts, chunk.encoded_layer(layer))
        else:
            k, v = chunk.layer(layer)
            assert_same(parts, ((k,), (v,)))
        k, v = stored.layer(layer)
        assert k.equal(chunk.layer(layer)[0]) and v.equal(chunk.layer(layer)[1])


def assert_same(ours: Parts, theirs: Parts) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        for one, another in zip(mine, other, strict=True):
            assert one.dtype == another.dtype and one.equal(another) and one.is_contiguous()


# -- whole answers --------------------------------------------------------------------------------


def place_in_torch(
    k: Sequence[Tensor], v: Sequence[Tensor], *, positions: Tensor, cos: Tensor, sin: Tensor,
    k_out: Tensor, v_out: Tensor,
) -> None:  # fmt: skip
    """What the Triton kernel does."""
    rotate = Rotation(cos[positions].unsqueeze(1), sin[positions].unsqueeze(1))
    for stored, out in ((k, k_out), (v, v_out)):
        x = stored[0]
        if len(stored) == 2:
            x = (x.float() * stored[1].float().unsqueeze(-1)).to(out.dtype)
        out.copy_((rotate(x) if stored is k else x).transpose(0, 1))


class Counted(Transfers):
    begun: ClassVar[list[int]] = []
    finished: ClassVar[int] = 0

    def begin(self, layer: int) -> None:
        super().begin(layer)
        if self._ahead is not None:
            Counted.begun.append(layer)

    def finish(self) -> None:
        super().finish()
        Counted.finished += 1


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Placement goes through transfers."""
    monkeypatch.setattr(kv_placement_gpu, "supports", lambda kv: True)
    monkeypatch.setattr(kv_placement_gpu, "place", place_in_torch)
    monkeypatch.setattr(place, "Transfers", Counted)
    Counted.begun, Counted.finished = [], 0


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
            assert Counted.begun == list(range(first, model.adapter.layers))
        assert report.flops == plain.flops
