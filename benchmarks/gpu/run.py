"""What every line of the GPU's table is given."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.speed.paired import Work
from kvstitch.service.worker.api import DecoderModel


@dataclass(frozen=True)
class Run:
    """What to run.

    Attributes:
        decoder: the model.
        repetitions: of every measurement.
        tokens: of the prompt and of every decoded context.
        chunks: documents of the prompt.
        square: side of the matrices whose product gives the device's rate.
        copied: bytes of the copy that gives the device's bandwidth.
        batch: contexts that are decoded together; fewer where the memory is too small.
        budget: KV entries per head, on average, after eviction.
        steps: tokens to decode.
        contexts: other lengths of prompts, in tokens.
    """

    decoder: DecoderModel
    repetitions: int
    tokens: int = 8192
    chunks: int = 16
    square: int = 8192
    copied: int = 4 << 30
    batch: int = 64
    budget: int = 1024
    steps: int = 16
    contexts: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)


def synchronised(decoder: DecoderModel, work: Work) -> Work:
    """The work including the wait until the device has finished it."""

    def done() -> None:
        work()
        if decoder.device.type == "cuda":
            torch.cuda.synchronize()

    return done
