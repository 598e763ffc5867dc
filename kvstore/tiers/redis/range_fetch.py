"""Fetches ranges of stored values, one after the other, into one buffer.

The next batch is requested before the current one has arrived. So the server never waits, and
never holds more than two batches of replies in its memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from kvstore.errors import ChunkCorrupt
from kvstore.format.buffers import view_bytes
from kvstore.format.byte_ranges import ByteProgress, ByteRange
from kvstore.tiers.redis.resp import Replies

BATCH_BYTES = 2 << 20  # bytes of values requested at a time


@dataclass(frozen=True)
class RangeFetch:
    """The ranges to fetch and the commands that fetch them.

    Attributes:
        ranges: not empty.
        commands: one for each range.
        absent: lengths of replies (None: nil) that mean there is no such value.
        last: commands to send at the end, each answered by 0 or 1.
    """

    ranges: Sequence[ByteRange]
    commands: Sequence[bytes]
    absent: Sequence[int | None]
    last: Sequence[bytes]


def fetch_ranges(
    replies: Replies, request: RangeFetch, data: Tensor, progress: ByteProgress | None
) -> bool:
    """Fill `data` with the ranges.

    Returns:
        False when a value is not there.

    Raises:
        ChunkCorrupt: a value does not have the length of its range. The errors of `Replies` are
            raised too.
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
    """Batches of at most `BATCH_BYTES` bytes, but at least one range each."""
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
    """Turn the progress of a batch that starts at byte `before` into progress of the whole."""
    if progress is None:
        return None
    return lambda done: progress(before + done)
