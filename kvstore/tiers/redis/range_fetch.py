"""Ranges of stored values, received one after the other into one buffer. Knows no names of values.

The next batch is asked for before this one has come, so that the server never waits, and never
holds more than two batches of replies in its memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from kvstore.errors import ChunkCorrupt
from kvstore.format.buffers import view_bytes
from kvstore.format.byte_ranges import ByteProgress, ByteRange
from kvstore.tiers.redis.resp import Replies

BATCH_BYTES = 2 << 20  # of values asked for at a time


@dataclass(frozen=True)
class RangeFetch:
    """What to ask for.

    Attributes:
        ranges: what the values are, not empty.
        commands: one for each.
        absent: lengths of replies (None: nil) that mean there is no such value.
        last: commands that follow, answered by 0 or 1.
    """

    ranges: Sequence[ByteRange]
    commands: Sequence[bytes]
    absent: Sequence[int | None]
    last: Sequence[bytes]


def fetch_ranges(
    replies: Replies, request: RangeFetch, data: Tensor, progress: ByteProgress | None
) -> bool:
    """Fill `data`; False when a value is not there.

    Raises:
        ChunkCorrupt: a value has another length than its range; and as `Replies` does.
    """
    view = view_bytes(data)
    batches = list(_batches(request.ranges))
    asked = done = 0
    for number, batch in enumerate(batches):
        for ahead in batches[number + bool(number) : number + 2]:
            replies.ask(request.commands[asked : asked + len(ahead)])
            asked += len(ahead)
        if number + 1 == len(batches):
            replies.ask(request.last)
        places: list[memoryview] = []
        end = done
        for one in batch:
            places.append(view[end : end + one.nbytes])
            end += one.nbytes
        deviation = replies.values(places, _from(done, progress))
        if deviation is not None:
            if deviation.nbytes in request.absent:
                return False
            one = batch[deviation.number]
            raise ChunkCorrupt(f"layer {one.layer} gave {deviation.nbytes} bytes, not {one.nbytes}")
        done = end
    replies.flags(len(request.last))
    return True


def _batches(ranges: Sequence[ByteRange]) -> Iterator[list[ByteRange]]:
    """At least one range each, and otherwise at most `BATCH_BYTES`."""
    batch: list[ByteRange] = []
    held = 0
    for one in ranges:
        if batch and held + one.nbytes > BATCH_BYTES:
            yield batch
            batch, held = [], 0
        batch.append(one)
        held += one.nbytes
    yield batch


def _from(before: int, progress: ByteProgress | None) -> ByteProgress | None:
    """ByteProgress of a batch as progress of the whole, of which it starts at byte `before`."""
    if progress is None:
        return None
    return lambda done: progress(before + done)
