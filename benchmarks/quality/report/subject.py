"""The model that is asked: a folder, loaded once per process."""

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
from service.worker.core.model_facts import ModelFacts, read_calibration
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.load import default_pool_tokens, fingerprint, load

STORED = 2 * TOGETHER
"""Longest prompts that a store holds: all samples of a batch in two prefix modes."""


@dataclass(frozen=True)
class Place:
    """Where a model lies and how it is run; small, and the same in every process."""

    folder: Path
    dtype: str
    device: str
    threads: int


class Subject:
    """The model itself."""

    def __init__(self, place: Place) -> None:
        """Raises ModelRefused: it cannot be served."""
        torch.set_num_threads(place.threads)
        self.place = place
        self.adapter: DecoderAdapter = load(
            str(place.folder), dtype=place.dtype, device=place.device
        )
        self.facts: ModelFacts = read_calibration(
            place.folder,
            layers=self.adapter.layers,
            heads=self.adapter.heads,
            kv_heads=self.adapter.kv_heads,
        )
        self.fingerprint = fingerprint(str(place.folder))
        self.encoder = Encoder(place.folder)

    @property
    def dtype(self) -> str:
        return str(self.adapter.dtype).removeprefix("torch.")

    @property
    def label(self) -> str:
        """Of files that belong to this model as it is run."""
        return f"{self.fingerprint[:12]}-{self.dtype}"

    @contextmanager
    def bench(self, longest: int) -> Iterator[Bench]:
        """With room for as many prompts of `longest` tokens, answer included, as are asked
        together, or as many as memory is for. Raises InvalidRequest: not even one."""
        room = default_pool_tokens(self.adapter, TOGETHER)
        if longest > room:
            raise InvalidRequest(
                f"a prompt has {longest} tokens with its answer and memory is for {room}",
                field="samples",
            )
        with Bench.open(
            self.adapter,
            self.facts,
            self.fingerprint,
            self.encoder.tokenizer.decode,
            pool_tokens=min(room, TOGETHER * longest),
            memory_bytes=STORED * longest * self.adapter.kv_bytes_per_token,
        ) as bench:
            yield bench


def longest(samples: Sequence[Sample]) -> int:
    """Tokens of prompt and answer, at most."""
    return max(s.tokens + s.text.answer_tokens for s in samples)
