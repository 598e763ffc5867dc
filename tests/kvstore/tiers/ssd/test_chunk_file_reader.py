"""Reads of whole files, from the page cache or with O_DIRECT."""

import fcntl
import os
import threading

import pytest
import torch

from kvstitch.kvstore import ChunkCorrupt, ChunkRefused, SsdTier, TieredStore
from kvstitch.kvstore.tiers.ssd import chunk_file_reader
from kvstitch.kvstore.tiers.ssd.directory_scan import chunk_path
from tests.kvstore.chunks import make_chunk, make_key, make_spec, same_chunk

LARGE = make_spec(layers=6, tokens=8000)  # 3 MB


@pytest.fixture
def large():
    return make_chunk(LARGE)


@pytest.fixture
def tier(tmp_path, large):
    tier = SsdTier(tmp_path, 1 << 26)
    tier.start()
    tier.put(make_key(), large)
    yield tier
    tier.close()


@pytest.fixture
def cold(monkeypatch):
    """Pretend that nothing is in the page cache."""
    monkeypatch.setattr(chunk_file_reader, "is_cached", lambda fd, offset: False)


@pytest.fixture
def direct_reads(monkeypatch):
    """Sizes of the reads with O_DIRECT."""
    preadv, sizes = os.preadv, []

    def spy(fd, buffers, offset, flags=0):
        got = preadv(fd, buffers, offset, flags)
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            sizes.append(got)
        return got

    monkeypatch.setattr(os, "preadv", spy)
    return sizes


def test_past_the_page_cache_only_what_is_not_in_it(tier, large, direct_reads, monkeypatch):
    assert same_chunk(tier.read(make_key()), large) and not direct_reads
    monkeypatch.setattr(chunk_file_reader, "is_cached", lambda fd, offset: False)
    assert same_chunk(tier.read(make_key()), large)
    if not direct_reads:
        pytest.skip("this filesystem has no direct reads")
    assert sum(direct_reads) == large.nbytes and len(direct_reads) == 2


def test_really_cold(tier, large, tmp_path):
    fd = os.open(chunk_path(tmp_path, make_key()), os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    assert same_chunk(tier.read(make_key()), large)


@pytest.mark.parametrize("segment", [4096, 8192, 1 << 20, 1 << 30])
def test_progress_is_true_and_ends_whole(tier, large, cold, monkeypatch, segment):
    monkeypatch.setattr(chunk_file_reader, "_SEGMENT", segment)
    seen = []

    def arrived(header, data, done):
        assert header == large.header and torch.equal(data[:done], large.data[:done])
        seen.append(done)

    assert same_chunk(tier.read(make_key(), arrived), large)
    assert seen == sorted(seen) and seen[0] >= 0 and seen[-1] == large.header.nbytes


def test_short_and_failing_direct_reads_are_finished_another_way(tier, large, cold, monkeypatch):
    preadv = os.preadv

    def call(how):
        def read(fd, buffers, offset, flags=0):
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                return how(fd, buffers, offset)
            return preadv(fd, buffers, offset, flags)

        monkeypatch.setattr(os, "preadv", read)

    def fail(*_):
        raise OSError(22, "Invalid argument")

    for how in (lambda fd, b, at: preadv(fd, [b[0][:4096]], at), fail):
        call(how)
        assert same_chunk(tier.read(make_key()), large)


def test_a_filesystem_without_direct_reads(tier, large, cold, monkeypatch):
    real = fcntl.fcntl

    def refuse(fd, command, flags=0):
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(fd, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert same_chunk(tier.read(make_key()), large)


@pytest.mark.parametrize("lost", [1, 4096, 2_000_000])
def test_a_file_that_became_shorter(tier, large, cold, tmp_path, lost):
    os.truncate(chunk_path(tmp_path, make_key()), large.nbytes - lost)
    with pytest.raises(ChunkCorrupt):
        tier.read(make_key())


def test_what_a_listener_raises_ends_the_read_before_the_file_is_closed(tier, cold, monkeypatch):
    """A thread that still reads would read another file once its descriptor is reused."""
    monkeypatch.setattr(chunk_file_reader, "_SEGMENT", 4096)
    preadv, open_reads, at_close = os.preadv, [0], []
    lock, close = threading.Lock(), os.close

    def slow(fd, buffers, offset, flags=0):
        with lock:
            open_reads[0] += 1
        try:
            return preadv(fd, buffers, offset, flags)
        finally:
            with lock:
                open_reads[0] -= 1

    monkeypatch.setattr(os, "preadv", slow)

    def closed(fd):
        at_close.append(open_reads[0])
        close(fd)

    monkeypatch.setattr(os, "close", closed)

    def refuse(header, data, done):
        raise ChunkRefused("not this one")

    for _ in range(20):
        with pytest.raises(ChunkRefused):
            tier.read(make_key(), refuse)
    assert at_close == [0] * 20


@pytest.mark.parametrize("place", [0, 100_000, -1])
def test_damage_is_found_past_the_page_cache_too(tmp_path, large, cold, place):
    with TieredStore([SsdTier(tmp_path, 1 << 26)]) as store:
        store.put(make_key(), large)
        path = chunk_path(tmp_path, make_key())
        content = bytearray(path.read_bytes())
        content[place if place < 0 else large.header.data_start + place] ^= 1
        path.write_bytes(content)
        outcome = store.read(make_key(), LARGE)
        assert outcome.chunk is None and outcome.problems == (("ssd", "corrupt"),)
        assert not path.exists()
