import sys

import pytest

from kvstore import ChunkCorrupt, ChunkRefused, checksum


@pytest.fixture
def without_xxhash(monkeypatch):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    checksum.default_algorithm.cache_clear()
    checksum._hasher.cache_clear()
    yield
    checksum.default_algorithm.cache_clear()
    checksum._hasher.cache_clear()


def test_xxh3_where_it_is_installed():
    text = checksum.checksum(b"abc")
    assert text.startswith("xxh3_128:") and len(text) == len("xxh3_128:") + checksum.DIGEST_HEX
    assert checksum.matches(text, memoryview(b"abc")) and not checksum.matches(text, b"abd")


def test_blake2b_without_xxhash(without_xxhash):
    text = checksum.checksum(b"abc")
    assert text.startswith("blake2b_128:")
    assert checksum.matches(text, bytearray(b"abc")) and not checksum.matches(text, b"abd")


def test_xxh3_checksum_is_refused_without_xxhash(without_xxhash):
    with pytest.raises(ChunkRefused, match="install xxhash"):
        checksum.matches("xxh3_128:" + "0" * 32, b"abc")


def test_both_algorithms_are_always_readable():
    assert checksum.matches("blake2b_128:cf4ab791c62b8d2b2109c90275287816", b"abc")


def test_unknown_algorithm_is_corruption():
    with pytest.raises(ChunkCorrupt, match="unknown checksum"):
        checksum.matches("crc32:00", b"abc")
