import sys

import pytest

from kvstore import ChunkCorrupt, ChunkRefused, checksum
from kvstore.checksum import BlockDigests


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
    assert BlockDigests.parse("blake2b_64:2LsU2DPVlVk=", 1).matches(0, b"abc")
    assert BlockDigests.parse("xxh3_64:eK9flIkvOVA=", 1).matches(0, b"abc")


@pytest.mark.parametrize("name", ["crc32", "xxh3", "xxh3_32", "crc_64", ""])
def test_unknown_algorithm_is_corruption(name):
    with pytest.raises(ChunkCorrupt, match="unknown checksum"):
        checksum.matches(f"{name}:00", b"abc")


def test_digests_of_blocks():
    blocks = [b"abc", b"", b"abd"]
    digests = BlockDigests.of(blocks)
    assert digests.algorithm == "xxh3_64" and len(digests.digests) == 3 * 8
    assert BlockDigests.parse(digests.text, 3) == digests
    for block, content in enumerate(blocks):
        assert digests.matches(block, memoryview(content))
        assert not digests.matches((block + 1) % 3, content)


@pytest.mark.parametrize("text", ["xxh3_64:", "xxh3_64:AAAA", "xxh3_64:!", "", "xxh3_64"])
def test_digests_that_are_not_of_so_many_blocks(text):
    with pytest.raises(ChunkCorrupt, match="digests"):
        BlockDigests.parse(text, 2)


def test_digests_without_xxhash(without_xxhash):
    digests = BlockDigests.of([b"abc", b"de"])
    assert digests.algorithm == "blake2b_64" and digests.matches(1, b"de")
    with pytest.raises(ChunkRefused, match="install xxhash"):
        BlockDigests.parse("xxh3_64:eK9flIkvOVA=", 1).matches(0, b"abc")
