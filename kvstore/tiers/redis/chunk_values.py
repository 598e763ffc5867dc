"""The values of a chunk in Redis: their names, and how all of them are deleted.

    kvstitch:{<key>}:h      the header
    kvstitch:{<key>}:<l>    the data of layer l; ranges of it can be fetched alone
    kvstitch:{<key>}:x      a hash of extra tensors, one field per name

The braces are a hash tag: all values of a chunk are in one slot, so on one server of a cluster.

In a cluster a replica may take over at any moment, and with it what it had not yet deleted would
come back. So a deletion counts only when the server's replicas have it (WAIT).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kvstore.errors import TierTimeout, TierUnavailable
from kvstore.format.chunk_identity import MAX_LAYERS, is_chunk_key, require_chunk_key
from kvstore.tiers.redis.redis_server import Redirected, RedisServer, Words, error_of_redis
from kvstore.tiers.redis.servers import Servers

_REPLICAS_MS = 300  # longest wait for the replicas; below a socket's
_MOVES = 4


@dataclass(frozen=True)
class ChunkNames:
    """Names that begin with `prefix`."""

    prefix: str

    def head(self, key: str) -> str:
        return self._name(key, "h")

    def layer(self, key: str, layer: int) -> str:
        return self._name(key, str(layer))

    def extras(self, key: str) -> str:
        return self._name(key, "x")

    def layers(self, key: str, count: int = MAX_LAYERS) -> list[str]:
        return [self.layer(key, layer) for layer in range(count)]

    @property
    def heads(self) -> str:
        """A pattern that all headers match."""
        return f"{self.prefix}:{{*}}:h"

    def keys(self, heads: Iterable[bytes]) -> Iterator[str]:
        """Yield the chunk keys in names that match `heads`, without those of somebody else."""
        start = len(self.prefix) + 2
        for name in heads:
            key = name.decode(errors="replace")[start:].removesuffix("}:h")
            if is_chunk_key(key):
                yield key

    def _name(self, key: str, part: str) -> str:
        return f"{self.prefix}:{{{require_chunk_key(key)}}}:{part}"


def delete_keys(servers: Servers, server: RedisServer, names: ChunkNames, keys: list[str]) -> int:
    """Delete chunks that are on this server, and return how many of them were there."""
    commands: list[Words] = []
    for key in keys:
        commands += [
            ("UNLINK", names.head(key)),
            ("UNLINK", *names.layers(key)),
            ("UNLINK", names.extras(key)),
        ]
    replies = _execute(servers, server, commands)
    removed = 0
    for number, key in enumerate(keys):
        of_key = replies[3 * number : 3 * number + 3]
        if any(isinstance(reply, Redirected) for reply in of_key):
            removed += _delete_singly(servers, server, names, key)
        else:
            removed += bool(of_key[0] + of_key[1])
    return removed


def _delete_singly(servers: Servers, server: RedisServer, names: ChunkNames, key: str) -> bool:
    """Delete a chunk whose slot is moving, or has moved."""
    each: list[Words] = [
        ("UNLINK", name) for name in (names.head(key), *names.layers(key), names.extras(key))
    ]
    removed = False
    for _ in range(_MOVES):
        replies = _execute(servers, server, each)
        removed |= any(reply for reply in replies if isinstance(reply, int))
        redirects = [reply for reply in replies if isinstance(reply, Redirected)]
        if not redirects:
            return removed
        moved = [one for one in redirects if one.moved]
        server = servers.redirect((moved or redirects)[0])
        if not moved:
            asking = [words for one in each for words in (("ASKING",), one)]
            replies = _execute(servers, server, asking)[1::2]
            if not any(isinstance(reply, Redirected) for reply in replies):
                return removed or any(replies)
    raise TierUnavailable(f"{server.address}: a slot keeps moving", server=server.address)


def _execute(servers: Servers, server: RedisServer, commands: list[Words]) -> list[Any]:
    """Execute the commands in one go; redirects are among the replies, other errors are raised."""
    replicas = servers.replicas(server)
    with server.session() as client:
        if replicas is not None:  # those that it has, and those that the cluster believes it has
            replicas = max(replicas, client.info("replication")["connected_slaves"])
        pipeline = client.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)
        if replicas:
            pipeline.execute_command("WAIT", replicas, _REPLICAS_MS)
        replies = pipeline.execute(raise_on_error=False)
        confirmed = replies.pop() if replicas else 0
        ours = [
            error_of_redis(reply, server.address) if isinstance(reply, Exception) else reply
            for reply in replies
        ]
        for reply in ours:
            if isinstance(reply, Exception) and not isinstance(reply, Redirected):
                raise reply
    if replicas and confirmed < replicas:  # no fault of the server itself, so outside its session
        raise TierTimeout(
            f"{server.address}: {confirmed} of {replicas} replicas confirmed a deletion",
            server=server.address,
        )
    return ours
