"""The measured model: a folder that each process loads once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.quality.bench import Bench
from benchmarks.quality.encode import Encoder
from benchmarks.quality.run import TOGETHER
from benchmarks.quality.sample import Sample
from service.errors import InvalidRequest
from service.worker.api import (
    DecoderModel,
    default_pool_tokens,
    load_model,
    model_fingerprint,
    read_calibration,
)
from service.worker.methods.api import ModelFacts

STORED = 2 * TOGETHER
"""How many of the longest prompts a store holds: all samples of a batch in two prefix modes."""


@dataclass(frozen=True)
class Place:
    """Which model, and how to run it; passed to every process."""

    folder: Path
    dtype: str
    device: str
    threads: int


class Subject:
    """The loaded model."""

    def __init__(self, place: Place) -> None:
        """Loads the model.

        Raises:
            ModelRefused: it cannot be served.
        """
        torch.set_num_threads(place.threads)
        self.place = place
        self.decoder: DecoderModel = load_model(
            str(place.folder), dtype=place.dtype, device=place.device
        )
        self.facts: ModelFacts = read_calibration(
            place.folder,
            layers=self.decoder.layers,
            heads=self.decoder.heads,
            kv_heads=self.decoder.kv_heads,
        )
        self.fingerprint = model_fingerprint(str(place.folder))
        self.encoder = Encoder(place.folder)

    @property
    def dtype(self) -> str:
        return str(self.decoder.dtype).removeprefix("torch.")

    @property
    def label(self) -> str:
        """Part of the names of files that belong to this model and dtype."""
        return f"{self.fingerprint[:12]}-{self.dtype}"

    @contextmanager
    def bench(self, longest: int) -> Iterator[Bench]:
        """A bench with memory for the prompts that are answered together, or for as many as fit.

        Args:
            longest: tokens of the longest prompt with its answer.

        Raises:
            InvalidRequest: memory does not suffice for one.
        """
        room = default_pool_tokens(self.decoder, TOGETHER)
        if longest > room:
            raise InvalidRequest(
                f"a prompt has {longest} tokens with its answer and memory is for {room}",
                field="samples",
            )
        with Bench.open(
            self.decoder,
            self.facts,
            self.fingerprint,
            self.encoder.tokenizer.decode,
            pool_tokens=min(room, TOGETHER * longest),
            memory_bytes=STORED * longest * self.decoder.kv_bytes_per_token,
        ) as bench:
            yield bench


def longest(samples: Sequence[Sample]) -> int:
    """Tokens of the longest prompt with its answer."""
    return max(s.tokens + s.text.answer_tokens for s in samples)
