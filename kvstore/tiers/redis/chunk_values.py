"""The values of a chunk in Redis: their names, how they are read, and how all are deleted.

    kvstitch:{<key>}:h      the header
    kvstitch:{<key>}:<l>    the data of layer l; ranges of it can be fetched alone
    kvstitch:{<key>}:x      a hash of extra tensors, one field per name

The braces are a hash tag: all values of a chunk are in one slot, so on one server of a cluster.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from kvstitch.kvstore.errors import ChunkCorrupt, TierTimeout
from kvstitch.kvstore.format.buffers import ByteRange, total_bytes, view_bytes
from kvstitch.kvstore.format.chunk_header import ChunkHeader, parse_header
from kvstitch.kvstore.format.chunk_identity import MAX_LAYERS, is_chunk_key, require_chunk_key
from kvstitch.kvstore.tiers.base import ChunkProgress
from kvstitch.kvstore.tiers.redis.redis_server import (
    Redirected,
    RedisServer,
    ValueReplies,
    Words,
    error_of_redis,
)
from kvstitch.kvstore.tiers.redis.servers import Servers

BATCH_BYTES = 2 << 20  # bytes of values requested at a time
_REPLICAS_MS = 300  # longest wait for the replicas; below a socket's


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


@dataclass(frozen=True)
class RangePlan:
    """The ranges to read, the commands that fetch them, what lengths mean that a value is not
    there, and commands to end with."""

    ranges: Sequence[ByteRange]
    commands: Sequence[Words]
    absent: Sequence[int | None]
    last: Sequence[Words]


@dataclass
class ChunkRead:
    """Reads ranges of one chunk into one buffer, and its header first where that is not known.

    The next batch is requested before the current one has arrived. So the server never waits, and
    never holds more than two batches of replies in its memory. A read goes on where it stopped if
    the slot moves meanwhile. Should the chunk have been replaced in between, the bytes do not match
    the digests in its header.
    """

    head: str  # name of the header's value
    # Says what is read of a chunk with this header; None: only the header.
    plan_of: Callable[[ChunkHeader], RangePlan] | None
    allocate: Callable[[int], Tensor]
    on_progress: ChunkProgress | None
    give_up_at: float
    header: ChunkHeader | None = None
    data: Tensor | None = None
    _plan: RangePlan | None = None
    _done: int = 0  # ranges in place
    _filled: int = 0  # bytes in place

    def on_server(self, server: RedisServer) -> bool:
        """Read from the server that has the slot; False when something is missing."""
        with server.values(self.give_up_at) as replies:
            return self._receive(replies)

    def _receive(self, replies: ValueReplies) -> bool:
        if self.header is None:
            replies.ask([("GET", self.head)])
            raw = replies.value()
            if raw is None:
                return False
            self.header = parse_header(raw)
        if self.plan_of is None:
            return True
        if self._plan is None or self.data is None:
            self._plan = self.plan_of(self.header)
            self.data = self.allocate(total_bytes(self._plan.ranges))
        plan, view = self._plan, view_bytes(self.data)
        batches = list(_batches(plan.ranges[self._done :]))
        asked = self._done
        for number, batch in enumerate(batches):
            for ahead in batches[number + bool(number) : number + 2]:
                replies.ask(plan.commands[asked : asked + len(ahead)])
                asked += len(ahead)
            if number + 1 == len(batches):
                replies.ask(plan.last)
            for one in batch:
                nbytes = replies.fill(view[self._filled : self._filled + one.nbytes])
                if nbytes in plan.absent:
                    return False
                if nbytes != one.nbytes:
                    raise ChunkCorrupt(f"layer {one.layer} gave {nbytes} bytes, not {one.nbytes}")
                self._done += 1
                self._filled += one.nbytes
                following = plan.ranges[self._done : self._done + 1]
                same_layer = following and following[0].layer == one.layer
                if self.on_progress is not None and not same_layer:
                    self.on_progress(self.header, self.data, self._filled)
        if batches:
            replies.flags(len(plan.last))
        return True


def delete_keys(servers: Servers, server: RedisServer, names: ChunkNames, keys: list[str]) -> int:
    """Delete chunks that are on this server, and return how many of them were there."""

    def unlink(server: RedisServer, key: str) -> bool:
        (there,) = _unlinked(servers, server, names, [key])
        if isinstance(there, Redirected):
            raise there
        return there

    removed = 0
    for key, there in zip(keys, _unlinked(servers, server, names, keys), strict=True):
        if isinstance(there, Redirected):
            there = servers.on_server(key, partial(unlink, key=key))
        removed += there
    return removed


def _unlinked(
    servers: Servers, server: RedisServer, names: ChunkNames, keys: list[str]
) -> list[bool | Redirected]:
    """Delete chunks in one go; of each return whether it was there, or where it may be.

    A replica of a cluster may take over at any moment, and with it what it had not yet deleted
    would come back. So a deletion counts only when the server's replicas have it (WAIT).
    """
    replicas = servers.replicas(server)
    with server.session() as client:
        if replicas is not None:  # those that it has, and those that the cluster believes it has
            replicas = max(replicas, client.info("replication")["connected_slaves"])
        pipeline = client.pipeline(transaction=False)
        for key in keys:
            for of_key in ([names.head(key)], names.layers(key), [names.extras(key)]):
                pipeline.unlink(*of_key)
        if replicas:
            pipeline.execute_command("WAIT", replicas, _REPLICAS_MS)
        replies = pipeline.execute(raise_on_error=False)
        confirmed = replies.pop() if replicas else 0
        counts: list[int | Redirected] = []
        for reply in replies:
            error = error_of_redis(reply, server.address) if isinstance(reply, Exception) else None
            if error is not None and not isinstance(error, Redirected):
                raise error
            counts.append(reply if error is None else error)
    if replicas and confirmed < replicas:  # no fault of the server itself, so outside its session
        raise TierTimeout(
            f"{server.address}: {confirmed} of {replicas} replicas confirmed a deletion",
            server=server.address,
        )
    found: list[bool | Redirected] = []
    for number in range(0, len(counts), 3):
        of_chunk = counts[number : number + 3]
        redirects = [one for one in of_chunk if isinstance(one, Redirected)]
        found.append(redirects[0] if redirects else any(of_chunk[:2]))
    return found


def _batches(ranges: Sequence[ByteRange]) -> Iterator[list[ByteRange]]:
    """Yield batches of at most `BATCH_BYTES` bytes, but at least one range each."""
    batch: list[ByteRange] = []
    held = 0
    for one in ranges:
        if batch and held + one.nbytes > BATCH_BYTES:
            yield batch
            batch, held = [], 0
        batch.append(one)
        held += one.nbytes
    if batch:
        yield batch
