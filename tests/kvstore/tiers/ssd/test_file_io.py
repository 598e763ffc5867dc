import os

import pytest

from kvstitch.kvstore import ChunkCorrupt
from kvstitch.kvstore.tiers.ssd.file_io import (
    read_fully,
    read_scattered,
    require_free_name,
    write_fully,
)


def test_partial_reads_and_writes_are_continued(tmp_path, monkeypatch):
    """The kernel may move fewer bytes than requested; here it moves seven at a time."""
    writev, preadv = os.writev, os.preadv
    monkeypatch.setattr(os, "writev", lambda fd, b: writev(fd, [b[0][:7]]))
    monkeypatch.setattr(os, "preadv", lambda fd, b, at: preadv(fd, [b[0][:7]], at))
    with (tmp_path / "x").open("w+b") as handle:
        write_fully(
            handle.fileno(), [memoryview(b"0123456789"), memoryview(b""), memoryview(b"ab")]
        )
        first, second = bytearray(4), bytearray(8)
        read_fully(handle.fileno(), [memoryview(first), memoryview(second)], 0)
    assert bytes(first + second) == b"0123456789ab"


def test_scattered_reads(tmp_path, monkeypatch):
    """Cached or not, in one read or a few bytes at a time, with or without readahead advice."""
    path = tmp_path / "x"
    path.write_bytes(bytes(range(200)))
    preadv, advised = os.preadv, []
    wanted = [(3, 5), (8, 7), (100, 1), (150, 50)]

    def read():
        buffers = [bytearray(size) for _, size in wanted]
        with path.open("rb") as handle:
            parts = [(at, memoryview(b)) for (at, _), b in zip(wanted, buffers, strict=True)]
            read_scattered(handle.fileno(), parts)
        assert [list(b) for b in buffers] == [list(range(at, at + n)) for at, n in wanted]

    read()
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: advised.append(arguments[1:]))
    read()
    assert advised == [], "all of it cached"

    def not_cached_from(offset):
        def call(fd, buffers, at, flags=0):
            if flags == os.RWF_NOWAIT and at >= offset:
                raise BlockingIOError
            return preadv(fd, buffers, at, flags)

        return call

    monkeypatch.setattr(os, "preadv", not_cached_from(8))
    read()
    assert advised == [(at, n, os.POSIX_FADV_WILLNEED) for at, n in wanted[1:]]
    monkeypatch.setattr(os, "preadv", lambda fd, b, at, flags=0: preadv(fd, [b[0][:2]], at))
    read()
    monkeypatch.setattr("kvstitch.kvstore.tiers.ssd.file_io._CAN_ADVISE", False)
    advised.clear()
    read()
    assert advised == []
    wanted.append((199, 2))
    with pytest.raises(ChunkCorrupt, match="shorter"):
        read()


def test_a_file_that_is_evicted_while_its_name_is_looked_at(tmp_path, monkeypatch):
    path, lstat = tmp_path / "chunk", os.lstat
    path.touch()

    def seen_and_removed(place):
        found = lstat(place)
        path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr("kvstitch.kvstore.tiers.ssd.file_io.os.lstat", seen_and_removed)
    require_free_name(path)
    assert not path.exists()
    monkeypatch.undo()
    with pytest.raises(FileExistsError, match="not a regular file"):
        require_free_name(tmp_path)
