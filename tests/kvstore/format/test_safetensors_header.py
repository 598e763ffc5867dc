import pytest

from kvstitch.kvstore import ChunkCorrupt
from kvstitch.kvstore.format.safetensors_header import NO_CHECKSUM, BlockDigests, checksum


def test_the_checksum_of_a_buffer():
    assert checksum(memoryview(b"abc")) == "xxh3_128:06b05ab6733a618578af5f94892f3950"
    assert len(NO_CHECKSUM) == len(checksum(b""))


def test_digests_of_blocks():
    blocks = [b"abc", b"", b"abd"]
    digests = BlockDigests.of(blocks)
    assert digests.text.startswith("xxh3_64:eK9flIkvOV") and len(digests.digests) == 3 * 8
    assert BlockDigests.parse(digests.text, 3) == digests
    views = [memoryview(content) for content in blocks]
    assert digests.differing(range(3), views) == digests.differing([1], views[1:2]) == []
    assert digests.differing(range(3), [views[2], views[1], views[0]]) == [0, 2]
    assert digests.differing([0, 2], [views[0], views[0]]) == [2]
    for contents in (views[:2], [*views, views[0]]):
        with pytest.raises(ValueError, match="argument 2"):
            digests.differing(range(3), contents)


@pytest.mark.parametrize("text", ["xxh3_64:", "xxh3_64:AAAA", "xxh3_64:!", "", "crc32:AAAA"])
def test_digests_that_are_not_of_so_many_blocks(text):
    with pytest.raises(ChunkCorrupt, match="digests"):
        BlockDigests.parse(text, 2)
