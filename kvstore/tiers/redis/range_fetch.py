"""Fetches ranges of stored values, one after the other, into one buffer.

The next batch is requested before the current one has arrived. So the server never waits, and
never holds more than two batches of replies in its memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from kvstore.errors import ChunkCorrupt
from kvstore.format.buffers import ByteProgress, ByteRange, view_bytes
from kvstore.tiers.redis.resp import Replies, ServerError, command

BATCH_BYTES = 2 << 20  # bytes of values requested at a time

Words = tuple[str | int, ...]
"""A command."""


@dataclass
class RangeFetch:
    """The ranges to fetch and the commands that fetch them.

    It can go on where it stopped, at another server of a cluster. Should the chunk have been
    replaced in between, the bytes do not match the digests in its header, so a mixture is found.

    Attributes:
        ranges: not empty.
        commands: one for each range.
        absent: lengths of replies (None: nil) that mean there is no such value.
        last: commands to send at the end, each answered by 0 or 1.
        done: how many ranges are in place.
    """

    ranges: Sequence[ByteRange]
    commands: Sequence[Words]
    absent: Sequence[int | None]
    last: Sequence[Words]
    done: int = 0

    @property
    def complete(self) -> bool:
        """Whether all ranges are in place."""
        return self.done == len(self.ranges)

    def fetch(self, replies: Replies, data: Tensor, progress: ByteProgress | None) -> bool:
        """Fill `data` with the ranges that are not in place yet.

        Returns:
            False when a value is not there.

        Raises:
            ChunkCorrupt: a value does not have the length of its range. The errors of `Replies`
                are raised too.
        """
        view = view_bytes(data)
        batches = list(_batches(self.ranges[self.done :]))
        asked = self.done
        for number, batch in enumerate(batches):
            for ahead in batches[number + bool(number) : number + 2]:
                sent = self.commands[asked : asked + len(ahead)]
                replies.ask([command(*words) for words in sent])
                asked += len(ahead)
            if number + 1 == len(batches):
                replies.ask([command(*words) for words in self.last])
            start = end = self._filled()
            places: list[memoryview] = []
            for one in batch:
                places.append(view[end : end + one.nbytes])
                end += one.nbytes
            try:
                deviation = replies.values(places, _from(start, progress))
            except ServerError as error:
                self.done += error.number
                raise
            if deviation is not None:
                return self._missing(self.done + deviation.number, deviation.nbytes)
            self.done += len(batch)
        if batches:
            replies.flags(len(self.last))
        return True

    def fetch_singly(
        self, execute: Callable[..., bytes | None], data: Tensor, progress: ByteProgress | None
    ) -> bool:
        """Fill `data` like `fetch`, by one call of `execute` for each range.

        Raises:
            ChunkCorrupt: as in `fetch`.
        """
        view = view_bytes(data)
        while not self.complete:
            value = execute(*self.commands[self.done])
            one, start = self.ranges[self.done], self._filled()
            if value is None or len(value) != one.nbytes:
                return self._missing(self.done, None if value is None else len(value))
            view[start : start + one.nbytes] = value
            self.done += 1
            if progress is not None:
                progress(start + one.nbytes)
        return True

    def _filled(self) -> int:
        return sum(one.nbytes for one in self.ranges[: self.done])

    def _missing(self, number: int, nbytes: int | None) -> bool:
        """False for a value that is not there; an error for one of another length."""
        if nbytes in self.absent:
            return False
        one = self.ranges[number]
        raise ChunkCorrupt(f"layer {one.layer} gave {nbytes} bytes, not {one.nbytes}")


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
    if batch:
        yield batch


def _from(before: int, progress: ByteProgress | None) -> ByteProgress | None:
    """Turn the progress of a batch that starts at byte `before` into progress of the whole."""
    if progress is None:
        return None
    return lambda done: progress(before + done)
