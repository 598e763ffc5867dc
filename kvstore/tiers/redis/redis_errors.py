"""What the errors of redis-py and the error replies of servers mean here."""

from collections.abc import Iterator
from contextlib import contextmanager

from kvstore.errors import (
    ChunkCorrupt,
    KvStoreError,
    TierError,
    TierFull,
    TierTimeout,
    TierUnavailable,
)

# Error replies that mean the server cannot answer now, whatever the command.
_NOT_NOW = ("LOADING", "MASTERDOWN", "NOAUTH")
_NOT_SERVED = "CLUSTERDOWN"
# The error reply for a name that holds a list, a set or a hash where a value should be.
_OTHER_TYPE = "WRONGTYPE"


class NotServed(TierUnavailable):
    """The server answers, but the cluster cannot serve this slot now."""


class Redirected(KvStoreError):
    """The slot is, or is about to be, another server's. No tier lets this out.

    Attributes:
        moved: whether the whole slot has moved. Otherwise it is moving now: some of its values are
            still here, the others at `address` already.
        slot: the slot; None if the reply did not say.
        address: the other server, `host:port`; None if the reply did not say.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        kind, _, rest = text.partition(" ")
        slot, _, address = rest.partition(" ")
        self.moved = kind == "MOVED"
        self.slot = int(slot) if slot.isdigit() else None
        self.address = address.strip() if self.slot is not None else None


def error_of_reply(text: str, address: str) -> Exception:
    """The exception for an error reply."""
    if text.startswith(("MOVED ", "ASK ", "TRYAGAIN")):
        return Redirected(text)
    if text.startswith(_OTHER_TYPE):
        return ChunkCorrupt(f"{address}: {text}")
    if text.startswith(_NOT_SERVED):
        return NotServed(f"{address}: {text}")
    kind = TierUnavailable if text.startswith(_NOT_NOW) else TierError
    return kind(f"{address}: {text}")


def error_of_redis(error: Exception, address: str) -> Exception:
    """The exception for one of redis-py's; any other comes back as it is."""
    from redis import exceptions

    text = f"{address}: {error}"
    match error:
        case exceptions.MovedError():
            return Redirected(f"MOVED {error.slot_id} {error.host}:{error.port}")
        case exceptions.AskError():
            return Redirected(f"ASK {error.slot_id} {error.host}:{error.port}")
        case exceptions.TryAgainError():
            return Redirected("TRYAGAIN")
        case exceptions.TimeoutError():
            return TierTimeout(text)
        case exceptions.MasterDownError() | exceptions.ConnectionError():
            return TierUnavailable(text)
        case exceptions.ClusterError() | exceptions.RedisClusterException():
            return NotServed(text)
        case exceptions.OutOfMemoryError():
            return TierFull(text)
        case exceptions.RedisError() if str(error).startswith(_OTHER_TYPE):
            return ChunkCorrupt(text)
        case exceptions.RedisError():
            return TierError(text)
    return error


@contextmanager
def redis_errors(address: str) -> Iterator[None]:
    """Turn redis-py's errors in the block into ours."""
    try:
        yield
    except Exception as error:
        ours = error_of_redis(error, address)
        if ours is error:
            raise
        raise ours from error
