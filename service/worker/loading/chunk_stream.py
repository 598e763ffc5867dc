"""A chunk on its way out of the store: whole in one read, or some layers at a time.

    found ──► reading ──► there          whole:  one part with every layer
      └────────┴────────► lost           stream: parts of neighbouring layers, in order

Written by the loader's threads, read by the engine's. Every part was verified by the store before
it gets here. Parts of one chunk may come from different tiers (it may be promoted meanwhile); each
is a sound precompute of the same tokens. Knows no store and no request.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from itertools import pairwise

from torch import Tensor

from kvstore import BlocksOutcome, EncodedBlocks, EncodedChunk, ReadOutcome
from kvstore.format.tensor_layout import tensor_layout
from kvstore.read_outcomes import ReadProblem
from service.worker.model.addressing import Address

# About this large a part is: of much less, asking would take longer than the bytes.
PART_BYTES = 1 << 20


def stored_bytes(address: Address) -> int:
    """Data bytes of the whole chunk."""
    return tensor_layout(address.spec)[-1].end


def parts_of(address: Address) -> list[range]:
    """Layers by part, equally many but for one; one part if the chunk is small. Layer i is in part
    ⌊i · parts / layers⌋, which the planner counts with."""
    layers = address.spec.layers
    count = min(layers, max(1, round(stored_bytes(address) / PART_BYTES)))
    bounds = [-(-part * layers // count) for part in range(count + 1)]
    return [range(a, b) for a, b in pairwise(bounds)]


class ChunkStream:
    """One chunk being read, for everyone who wants it now.

    tier: where it was found, then where its first bytes came from; None: not found, so far.
    decode: parts when they come, on the reader's thread; else they stay as they are stored, for who
    decodes them elsewhere.
    """

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
        self.last_news_at = time.monotonic()  # asked for, or a part came
        self.turn_bytes = 0.0  # what its tier had to read then up to and with its next part
        self.users = 0  # the loader's to count
        self.part_futures: list[Future[None]] = [Future() for _ in self.parts]
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._stored: dict[int, EncodedBlocks] = {}
        self._part_of = [i for i, part in enumerate(self.parts) for _ in part]

    # -- the reader's side ------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Nothing more will arrive."""
        return self.lost or self.part_futures[-1].done()

    @property
    def complete(self) -> bool:
        return self.done and not self.lost

    @property
    def known(self) -> bool:
        """Whether it is known to be stored, or not to be."""
        return self.tier is not None or self.done

    @property
    def parts_arrived(self) -> int:
        return sum(part.done() for part in self.part_futures)

    @property
    def bytes_left(self) -> int:
        """About as many are still to be read."""
        if self.done:
            return 0
        parts = len(self.parts)
        return stored_bytes(self.address) * (parts - self.parts_arrived) // parts

    @property
    def next_bytes(self) -> float:
        """Of the next part."""
        return self.bytes_left / max(1, len(self.parts) - self.parts_arrived)

    def pending(self, layer: int) -> Future[None] | None:
        """What to wait for before `layer` can be read; None: it can."""
        part = self.part_futures[self._part_of[layer]]
        return None if part.done() else part

    def arrived(self, layer: int) -> bool:
        """Whether `layer` can be read now."""
        return not self.lost and self.pending(layer) is None

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """k (before RoPE) and v of a layer that arrived: `[tokens, kv_heads, d]`."""
        stored = self.stored(layer)
        return self._layers[layer] if stored is None else stored.layer(layer)

    def stored(self, layer: int) -> EncodedChunk | EncodedBlocks | None:
        """What a layer that arrived is in, as it is stored; None if it was decoded."""
        return self.chunk if self.chunk is not None else self._stored.get(layer)

    # -- the loader's side ------------------------------------------------------------------------

    def whole(self, outcome: ReadOutcome) -> None:
        """The one read of the whole chunk is over."""
        self.tier = outcome.tier
        self._account(outcome.nbytes, outcome.seconds, outcome.problems)
        self.chunk = outcome.chunk
        if outcome.chunk is None:
            self.lose()
        else:
            self.part_futures[0].set_result(None)

    def part(self, number: int, outcome: BlocksOutcome) -> None:
        """One part's read is over: sound, or the chunk is lost."""
        if number == 0 and outcome.tier is not None:
            self.tier = outcome.tier
        self._account(outcome.nbytes, outcome.seconds, outcome.problems)
        if outcome.blocks is None or outcome.missing:
            self.lose()
            return
        for layer in self.parts[number]:
            if self._decode:
                self._layers[layer] = outcome.blocks.layer(layer)
            else:
                self._stored[layer] = outcome.blocks
        self.last_news_at = time.monotonic()
        self.part_futures[number].set_result(None)

    def lose(self) -> None:
        """No more of it will come; who waits is woken."""
        self.lost = True
        for part in self.part_futures:
            if not part.done():
                part.set_result(None)

    def _account(self, nbytes: int, seconds: float, problems: tuple[ReadProblem, ...]) -> None:
        self.nbytes += nbytes
        self.seconds += seconds
        self.problems += [p for p in problems if p not in self.problems]
