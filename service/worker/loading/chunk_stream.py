"""A chunk that is being read from the store, in one read or some layers at a time.

    found ──► reading ──► complete       small chunk:  one part with every layer
      └────────┴────────► lost           large chunk:  parts of neighbouring layers, in order

The loader's threads write it and the engine's thread reads it. The store has verified every part
before it gets here. Parts of one chunk may come from different tiers, because the chunk may be
promoted to a faster tier while it is read; each part is valid KV of the same tokens.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from itertools import pairwise

from torch import Tensor

from kvstitch.kvstore import BlocksOutcome, EncodedBlocks, EncodedChunk, ReadOutcome, ReadProblem
from kvstitch.kvstore.format.tensor_layout import tensor_layout
from kvstitch.service.worker.model.addressing import Address

# Approximate size of a part; for much smaller parts, a read's latency would exceed its transfer.
PART_BYTES = 1 << 20


def stored_bytes(address: Address) -> int:
    """Return bytes of the whole chunk's stored KV, without its header."""
    return tensor_layout(address.spec)[-1].end


def parts_of(address: Address) -> list[range]:
    """Return the layers of each part, one part of a small chunk: layer i is in part ⌊i · parts /
    layers⌋."""
    layers = address.spec.layers
    count = min(layers, max(1, round(stored_bytes(address) / PART_BYTES)))
    bounds = [-(-part * layers // count) for part in range(count + 1)]
    return [range(a, b) for a, b in pairwise(bounds)]


class ChunkStream:
    """One chunk that is being read, shared by all requests that need it at the same time."""

    def __init__(self, address: Address, tier: str | None, *, decode: bool = True) -> None:
        self.address = address
        self._decode = decode
        self.tier = tier
        self.parts = parts_of(address) if tier is not None else [range(address.spec.layers)]
        self.nbytes = 0
        self.seconds = 0.0
        self.problems: list[ReadProblem] = []
        self.chunk: EncodedChunk | None = None
        self.lost = False
        self.last_news_at = time.monotonic()
        self.turn_bytes = 0.0
        self.users = 0
        self.part_futures: list[Future[None]] = [Future() for _ in self.parts]
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._states: dict[int, tuple[Tensor, str]] = {}
        self._stored: dict[int, EncodedBlocks] = {}
        self._part_of = [i for i, part in enumerate(self.parts) for _ in part]

    # -- for the engine ---------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether nothing more will arrive."""
        return self.lost or self.part_futures[-1].done()

    @property
    def complete(self) -> bool:
        """Whether every part has arrived."""
        return self.done and not self.lost

    @property
    def known(self) -> bool:
        """Whether it is known if the chunk is stored."""
        return self.tier is not None or self.done

    @property
    def parts_arrived(self) -> int:
        return sum(part.done() for part in self.part_futures)

    @property
    def bytes_left(self) -> int:
        """Approximate number of bytes still to be read."""
        if self.done:
            return 0
        parts = len(self.parts)
        return stored_bytes(self.address) * (parts - self.parts_arrived) // parts

    @property
    def next_bytes(self) -> float:
        """Approximate number of bytes of the next part."""
        return self.bytes_left / max(1, len(self.parts) - self.parts_arrived)

    def pending(self, layer: int) -> Future[None] | None:
        """Return what to wait for before `layer` can be used; None if it arrived or is lost."""
        part = self.part_futures[self._part_of[layer]]
        return None if part.done() else part

    def arrived(self, layer: int) -> bool:
        """Return whether `layer` can be used now."""
        return not self.lost and self.pending(layer) is None

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys before RoPE and values of an arrived layer `[tokens, kv_heads, head_dim]`."""
        stored = self.stored(layer)
        return self._layers[layer] if stored is None else stored.layer(layer)

    def state(self, layer: int) -> tuple[Tensor, str]:
        """Return what an arrived layer stores for those that keep a state; see `CachedSegment`."""
        stored = self.stored(layer)
        return self._states[layer] if stored is None else stored.state(layer)

    def stored(self, layer: int) -> EncodedChunk | EncodedBlocks | None:
        """Return the encoded KV that contains an arrived layer; None if it is already decoded."""
        return self.chunk if self.chunk is not None else self._stored.get(layer)

    # -- for the loader ---------------------------------------------------------------------------

    def whole(self, outcome: ReadOutcome) -> None:
        """Take the result of reading the whole chunk at once."""
        self.tier = outcome.tier
        self._account(outcome.nbytes, outcome.seconds, outcome.problems)
        self.chunk = outcome.chunk
        if outcome.chunk is None:
            self.lose()
        else:
            self.part_futures[0].set_result(None)

    def part(self, number: int, outcome: BlocksOutcome) -> None:
        """Take the result of reading one part; if that failed, the chunk is lost."""
        if number == 0 and outcome.tier is not None:
            self.tier = outcome.tier
        self._account(outcome.nbytes, outcome.seconds, outcome.problems)
        if outcome.blocks is None or outcome.missing:
            self.lose()
            return
        for layer in self.parts[number]:
            if self._decode:
                self._layers[layer] = outcome.blocks.layer(layer)
                if self.address.spec.state:
                    self._states[layer] = outcome.blocks.state(layer)
            else:
                self._stored[layer] = outcome.blocks
        self.last_news_at = time.monotonic()
        self.part_futures[number].set_result(None)

    def lose(self) -> None:
        """Give the chunk up and wake everyone who waits for a part."""
        self.lost = True
        for part in self.part_futures:
            if not part.done():
                part.set_result(None)

    def _account(self, nbytes: int, seconds: float, problems: tuple[ReadProblem, ...]) -> None:
        self.nbytes += nbytes
        self.seconds += seconds
        self.problems += [p for p in problems if p not in self.problems]
