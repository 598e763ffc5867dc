"""The results of reading from a store."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from kvstore.format.chunk import EncodedChunk
from kvstore.format.chunk_blocks import BlockSelection, EncodedBlocks

ReadProblem = tuple[str, str]
"""(tier name, kind); the kinds are corrupt, refused, timeout, unavailable and error."""


@dataclass(frozen=True)
class ReadOutcome:
    """The result of reading a whole chunk.

    Attributes:
        chunk: the verified chunk, or None on a miss.
        tier: name of the tier it came from.
        nbytes: bytes of the whole chunk file, header included; 0 on a miss.
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
    """A block of one layer whose bytes in one tier differ from what was written."""

    tier: str
    layer: int
    block: int


@dataclass(frozen=True)
class BlocksOutcome:
    """The result of reading some blocks.

    Attributes:
        blocks: the intact blocks, all from the same copy of the chunk; None on a miss.
        tier: name of the tier they came from.
        missing: blocks to recompute by layer: they were requested and the chosen copy has no
            intact one. On a miss this is everything that was requested.
        seconds: as in `ReadOutcome`.
        problems: as in `ReadOutcome`.
        bad: every bad block that was seen, also if another tier had an intact one.
        loaded: bytes moved by tier, headers and bad blocks included.
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
        tensors: by name, in host memory that other readers share: never write into them.
        tier: name of the tier they came from.
        nbytes: bytes of their file, header included.
        seconds: time of the whole read, verification and failed tiers included.
    """

    tensors: Mapping[str, Tensor]
    tier: str
    nbytes: int
    seconds: float
