import sys

import pytest

from kvstore import ChunkCorrupt, ChunkRefused
from kvstore.format import checksum
from kvstore.format.checksum import BlockDigests


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
    for text in ("blake2b_64:2LsU2DPVlVk=", "xxh3_64:eK9flIkvOVA="):
        assert BlockDigests.parse(text, 1).differing([0], [b"abc"]) == []


@pytest.mark.parametrize("name", ["crc32", "xxh3", "xxh3_32", "crc_64", ""])
def test_unknown_algorithm_is_corruption(name):
    with pytest.raises(ChunkCorrupt, match="unknown checksum"):
        checksum.matches(f"{name}:00", b"abc")


def test_digests_of_blocks():
    blocks = [b"abc", b"", b"abd"]
    digests = BlockDigests.of(blocks)
    assert digests.algorithm == "xxh3_64" and len(digests.digests) == 3 * 8
    assert BlockDigests.parse(digests.text, 3) == digests
    views = [memoryview(content) for content in blocks]
    assert digests.differing(range(3), views) == digests.differing([1], views[1:2]) == []
    assert digests.differing(range(3), [views[2], views[1], views[0]]) == [0, 2]
    assert digests.differing([0, 2], [views[0], views[0]]) == [2]
    for contents in (views[:2], [*views, views[0]]):
        with pytest.raises(ValueError, match="argument 2"):
            digests.differing(range(3), contents)


@pytest.mark.parametrize("text", ["xxh3_64:", "xxh3_64:AAAA", "xxh3_64:!", "", "xxh3_64"])
def test_digests_that_are_not_of_so_many_blocks(text):
    with pytest.raises(ChunkCorrupt, match="digests"):
        BlockDigests.parse(text, 2)


def test_digests_without_xxhash(without_xxhash):
    digests = BlockDigests.of([b"abc", b"de"])
    assert digests.algorithm == "blake2b_64" and not digests.differing([1], [b"de"])
    with pytest.raises(ChunkRefused, match="install xxhash"):
        BlockDigests.parse("xxh3_64:eK9flIkvOVA=", 1).differing([0], [b"abc"])
