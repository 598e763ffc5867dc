"""What is put under each key: known to parent and child without being told."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.kvstore import EncodedChunk, ExtraOutcome, ReadOutcome
from kvstitch.kvstore.format.codecs import CODECS
from tests.kvstore.chunks import make_chunk, make_key, make_spec, same_chunk

VARIANTS = 2  # two workers may compute the same chunk with different low bits
EXTRA = "sketch"
EXTRA_VERSIONS = (1, 2)
_LONG = 5600  # tokens of a chunk of more than 1 MiB, which is read without the page cache


@dataclass(frozen=True)
class Entry:
    """One key, the chunks that may be put under it and its extra tensors by version."""

    key: str
    chunks: tuple[EncodedChunk, ...]
    extras: dict[int, dict[str, Tensor]]

    def variant_of(self, outcome: ReadOutcome) -> int | None:
        """Which variant was read; None for a miss.

        Raises:
            AssertionError: something else was read than was ever put under this key.
        """
        chunk = outcome.chunk
        if chunk is None:
            return None
        assert chunk.header.key == self.key, f"{self.key} gave the chunk of {chunk.header.key}"
        for number, known in enumerate(self.chunks):
            if same_chunk(chunk, known):
                return number
        raise AssertionError(f"{self.key} gave bytes that nobody put there")

    def check_extra(self, outcome: ExtraOutcome, version: int) -> None:
        """Raises AssertionError if these are not the extra tensors of that version."""
        wanted = self.extras[version]
        assert set(outcome.tensors) == set(wanted), f"other extra tensors under {self.key}"
        for name, tensor in wanted.items():
            assert torch.equal(outcome.tensors[name], tensor), f"other {name} under {self.key}"


def make_entries(count: int) -> list[Entry]:
    """Small chunks of all codecs; the first one is long. Neighbours have the same spec."""
    entries = []
    for number in range(count):
        codec = sorted(CODECS)[number // 2 % len(CODECS)]
        spec = make_spec("raw", tokens=_LONG) if number == 0 else make_spec(codec)
        chunks = tuple(make_chunk(spec, seed=10 * number + n) for n in range(VARIANTS))
        extras = {
            version: {"mean": torch.arange(40.0) + 100 * number + version}
            for version in EXTRA_VERSIONS
        }
        entries.append(Entry(make_key(number), chunks, extras))
    return entries
