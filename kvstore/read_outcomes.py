"""What the reads of a store give: plain results. Knows no tier and no store."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from kvstore.format.chunk import EncodedChunk
from kvstore.format.chunk_blocks import BlockSelection, EncodedBlocks

ReadProblem = tuple[str, str]
"""(tier, kind); kinds: corrupt, refused, timeout, unavailable, error."""


@dataclass(frozen=True)
class ReadOutcome:
    """What a read gave.

    Attributes:
        chunk: the verified chunk, or None on a miss.
        tier: name of the tier it came from.
        nbytes: bytes of its container; 0 on a miss.
        seconds: time of the whole read, verification and failed tiers included.
        problems: what went wrong on the way, in order; a plain miss is not a problem.
    """

    chunk: EncodedChunk | None
    tier: str | None
    nbytes: int
    seconds: float
    problems: tuple[ReadProblem, ...] = ()


@dataclass(frozen=True)
class BadBlock:
    """A block of one layer whose bytes in one tier were not those that were written."""

    tier: str
    layer: int
    block: int


@dataclass(frozen=True)
class BlocksOutcome:
    """What a read of some blocks gave; ``seconds`` and ``problems`` as in :class:`ReadOutcome`.

    Attributes:
        blocks: the sound blocks, all of one copy; None on a miss.
        tier: name of the tier they came from.
        missing: layer to the blocks to recompute: asked for, and no tier had a sound one. On a
            miss everything that was asked for.
        bad: every bad block that was met, also where another tier made up for it.
        loaded: tier to bytes moved from it, headers and bad blocks included.
    """

    blocks: EncodedBlocks | None
    tier: str | None
    missing: BlockSelection
    seconds: float
    problems: tuple[ReadProblem, ...] = ()
    bad: tuple[BadBlock, ...] = ()
    loaded: Mapping[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes moved from all tiers."""
        return sum(self.loaded.values())


@dataclass(frozen=True)
class ExtraOutcome:
    """Extra tensors that were found.

    Attributes:
        tensors: by name, host memory that others share: never write into them.
        tier: name of the tier they came from.
        nbytes: bytes of their container.
        seconds: time of the whole read, verification and failed tiers included.
    """

    tensors: Mapping[str, Tensor]
    tier: str
    nbytes: int
    seconds: float
