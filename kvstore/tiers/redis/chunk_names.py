"""The names of a chunk's values in Redis.

    kvstitch:{<key>}:h      the header
    kvstitch:{<key>}:<l>    the data of layer l; ranges of it can be fetched alone
    kvstitch:{<key>}:x      a hash of extra tensors, one field per name

The braces are a hash tag: all values of a chunk are in one slot, so on one server of a cluster.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvstore.format.chunk_identity import MAX_LAYERS, is_chunk_key, require_chunk_key


@dataclass(frozen=True)
class ChunkNames:
    """Names that begin with `prefix`."""

    prefix: str

    def head(self, key: str) -> str:
        return f"{self.prefix}:{{{require_chunk_key(key)}}}:h"

    def layer(self, key: str, layer: int) -> str:
        return f"{self.prefix}:{{{require_chunk_key(key)}}}:{layer}"

    def extras(self, key: str) -> str:
        return f"{self.prefix}:{{{require_chunk_key(key)}}}:x"

    def layers(self, key: str, count: int = MAX_LAYERS) -> list[str]:
        return [self.layer(key, layer) for layer in range(count)]

    @property
    def heads(self) -> str:
        """A pattern that all headers match."""
        return f"{self.prefix}:{{*}}:h"

    def keys(self, heads: Iterable[bytes]) -> Iterator[str]:
        """The chunk keys in names that match `heads`, without those of somebody else."""
        start = len(self.prefix) + 2
        for name in heads:
            key = name.decode(errors="replace")[start:].removesuffix("}:h")
            if is_chunk_key(key):
                yield key
