"""Recorded decode steps against unrecorded ones. On a CPU a recording is replayed by running
the operations again on the tensors they were recorded with, which is what a CUDA graph does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.forward.decode import BatchDecoder, decode_step
from kvstitch.service.worker.kv.pool import KVPool
from kvstitch.service.worker.model.families import decoder_for
from kvstitch_gpu import recorded_steps
from kvstitch_gpu.recorded_steps import RecordedSteps
from tests.service.worker.forward.test_decode import Running, filled
from tests.service.worker.tiny import Tiny, random_model, tiny_config
from tests_gpu.kernels.interpreter import needs_gpu

ROOM = 9


@dataclass
class Recorder:
    """Plays what was recorded; `recorded` counts."""

    recorded: int = 0
    spoil: float = 0.0
    logits: list[Tensor] = field(default_factory=list)

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        out = run().clone()
        self.recorded += 1
        self.logits.append(out)

        def play() -> None:
            out.copy_(run() + self.spoil)

        return out, play


def running(model: Tiny, lengths: tuple[int, ...]) -> list[Running]:
    decoder = model.decoder
    tokens = sum(lengths) + ROOM * len(lengths)
    pool = KVPool(
        decoder.layers, decoder.kv_heads, decoder.head_dim, tokens,
        dtype=decoder.dtype, device=decoder.device,
    )  # fmt: skip
    return [filled(model, pool, n, ragged=i % 2 == 1, room=ROOM) for i, n in enumerate(lengths)]


def steps(step: Callable[[list[Running]], Tensor], sequences: list[Running]) -> Tensor:
    """Logits of three steps, the batch smaller by one after each."""
    out = []
    for number in range(3):
        batch = sequences[: len(sequences) - number]
        for each in batch:
            each.tokens.append(7 + number)
        out.append(step(batch).clone())
        for each in batch:
            each.position += 1
    return torch.cat(out)


def decoding(model: Tiny, sequences: list[Running], recorder: Recorder) -> RecordedSteps:
    return RecordedSteps(model.decoder, sequences[0].kv.pool, recorder)


@pytest.mark.parametrize("lengths", [(40, 9, 3, 12, 5), (3, 9, 20, 4)])
def test_what_is_played_is_the_step(model: Tiny, lengths: tuple[int, ...]) -> None:
    """Batches are padded to a recorded size; padding rows change nothing."""
    plain, played, recorder = running(model, lengths), running(model, lengths), Recorder()
    expected = steps(lambda batch: decode_step(model.decoder, batch), plain)
    found = steps(decoding(model, played, recorder).step, played)
    # Some CPUs' fp32 products add in another order for other numbers of rows (2e-5 was seen).
    assert torch.allclose(found, expected, atol=1e-4)
    assert found.argmax(-1).equal(expected.argmax(-1))
    for theirs, ours in zip(plain, played, strict=True):
        assert ours.kv.length.equal(theirs.kv.length)
        for layer, (start, length) in enumerate(zip(ours.kv.start, ours.kv.length, strict=True)):
            for first, n in zip(start.tolist(), length.tolist(), strict=True):
                span, pools = slice(first, first + n), (ours.kv.pool, theirs.kv.pool)
                for name in ("k", "v"):
                    mine, other = (getattr(pool, name)[layer][span] for pool in pools)
                    assert torch.allclose(mine, other, atol=1e-5)


def test_a_size_is_recorded_once(model: Tiny) -> None:
    sequences, recorder = running(model, (5, 6, 7, 8, 9)), Recorder()
    step = decoding(model, sequences, recorder).step
    steps(step, sequences)  # of 5, 4 and 3: sizes 8 and 4
    assert recorder.recorded == 2
    steps(step, sequences)
    assert recorder.recorded == 2
    assert [len(logits) for logits in recorder.logits] == [8, 4]


def test_longer_runs_are_recorded_anew(model: Tiny) -> None:
    sequences, recorder = running(model, (5, 40)), Recorder()
    one, other = sequences
    one.tokens.append(1)
    other.tokens.append(1)
    with patch.object(recorded_steps, "SHORTEST", 8):
        step = decoding(model, sequences, recorder).step
        step([one])
        assert recorder.recorded == 1
        step([other])
    assert recorder.recorded == 2


@pytest.mark.parametrize("fault", ["differs", "no number", "fails"])
def test_what_is_not_right_is_not_played(
    model: Tiny, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """The step is computed instead, from then on."""
    lengths = (5, 6, 7)
    plain, played = running(model, lengths), running(model, lengths)
    recorder = Recorder(spoil={"differs": 1.0, "no number": float("nan"), "fails": 0.0}[fault])
    ours = decoding(model, played, recorder)
    if fault == "fails":
        recorder.logits = None  # type: ignore[assignment]
    expected = steps(lambda batch: decode_step(model.decoder, batch), plain)
    assert torch.allclose(steps(ours.step, played), expected, atol=1e-5)
    assert recorder.recorded == 1
    assert "unrecorded" in caplog.text


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("lengths", [(40, 9, 3, 12, 5), (3000, 9, 70)])
def test_on_the_gpu(lengths: tuple[int, ...]) -> None:
    """CUDA graphs in bfloat16 against steps computed there."""
    config = tiny_config("qwen3", head_dim=64, max_position_embeddings=4096)
    decoder = decoder_for(random_model(config, dtype=torch.bfloat16).cuda())
    model: Any = SimpleNamespace(decoder=decoder)
    plain, played = running(model, lengths), running(model, lengths)
    ours: Any = BatchDecoder(decoder, played[0].kv.pool)
    expected = steps(lambda batch: decode_step(decoder, batch), plain)
    found = steps(ours.step, played)
    assert ours._base_step.__self__._recordings, "nothing was recorded"
    assert float((found - expected).abs().max() / expected.abs().max()) < 2**-6
