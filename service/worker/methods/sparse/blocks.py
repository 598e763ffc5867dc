"""The 64-token blocks of a document and their roles (docs/specification.md §1.7)."""

from __future__ import annotations

from dataclasses import dataclass

from kvstore import BLOCK_TOKENS

BLOCK = BLOCK_TOKENS
LOCAL_BLOCKS = 2


@dataclass(frozen=True)
class BlockGrid:
    """The blocks of one document: init (the first), local (the last two) and middle (the rest).

    0    64   128  192                      T
    ├init┤────┤────┤──── middle ──── ┤local ┤
    """

    tokens: int
    # tokens of a block. The store reads blocks of 64; other sizes are for measurements on models
    # with short contexts
    block: int = BLOCK

    @property
    def blocks(self) -> int:
        return -(-self.tokens // self.block)

    @property
    def fixed(self) -> list[int]:
        """Numbers of the blocks that are always kept (init and local), ascending."""
        return sorted({0, *range(max(0, self.blocks - LOCAL_BLOCKS), self.blocks)})

    @property
    def local(self) -> list[int]:
        return list(range(max(0, self.blocks - LOCAL_BLOCKS), self.blocks))

    @property
    def middle(self) -> list[int]:
        return list(range(1, self.blocks - LOCAL_BLOCKS))

    def span(self, block: int) -> range:
        """Return the token indices of a block; the document's last block may be shorter."""
        return range(block * self.block, min(self.tokens, (block + 1) * self.block))

    def indices(self, blocks: list[int]) -> list[int]:
        return [t for block in blocks for t in self.span(block)]
