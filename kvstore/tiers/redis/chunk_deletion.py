"""Deletes every name that chunks can have on a server.

In a cluster a replica may take over at any moment, and with it what it had not yet deleted would
come back. So a deletion counts only when the server's replicas have it (WAIT).
"""

from collections.abc import Sequence
from typing import Any

from kvstore.errors import TierTimeout, TierUnavailable
from kvstore.tiers.redis.chunk_names import ChunkNames
from kvstore.tiers.redis.redis_errors import Redirected, error_of_redis
from kvstore.tiers.redis.redis_server import RedisServer
from kvstore.tiers.redis.servers import Servers

_REPLICAS_MS = 300  # longest wait for the replicas; below a socket's
_MOVES = 4


def delete_keys(servers: Servers, server: RedisServer, names: ChunkNames, keys: list[str]) -> int:
    """Delete chunks that are on this server; how many of them were there.

    Raises:
        TierTimeout: a replica did not confirm it. Delete again.
    """
    commands: list[tuple[str, ...]] = []
    for key in keys:
        commands += [
            ("UNLINK", names.head(key)),
            ("UNLINK", *names.layers(key)),
            ("UNLINK", names.extras(key)),
        ]
    replies = _execute(servers, server, commands)
    removed = 0
    for number, key in enumerate(keys):
        mine = replies[3 * number : 3 * number + 3]
        if any(isinstance(reply, Redirected) for reply in mine):
            removed += _delete_singly(servers, server, names, key)
        else:
            removed += bool(mine[0] + mine[1])
    return removed


def _delete_singly(servers: Servers, server: RedisServer, names: ChunkNames, key: str) -> bool:
    """Delete a chunk whose slot is moving, or has moved.

    First where the slot was, then where it goes: values move in this direction only, so none can
    slip past.
    """
    each = [("UNLINK", name) for name in (names.head(key), *names.layers(key), names.extras(key))]
    removed = False
    for _ in range(_MOVES):
        replies = _execute(servers, server, each)
        removed |= any(reply for reply in replies if isinstance(reply, int))
        redirects = [reply for reply in replies if isinstance(reply, Redirected)]
        if not redirects:
            return removed
        moved = [one for one in redirects if one.moved]
        server = servers.learn((moved or redirects)[0])
        if not moved:
            asking = [words for one in each for words in (("ASKING",), one)]
            replies = _execute(servers, server, asking)[1::2]
            if not any(isinstance(reply, Redirected) for reply in replies):
                return removed or any(replies)
    raise TierUnavailable(f"{server.address}: a slot keeps moving", server=server.address)


def _execute(
    servers: Servers, server: RedisServer, commands: Sequence[tuple[str, ...]]
) -> list[Any]:
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
