import pytest
import torch

from kvstitch.kvstore import ChunkCorrupt, ChunkSpec, ChunkSpecError, encode_chunk
from kvstitch.kvstore.format.chunk import block_selection, check_selection
from kvstitch.kvstore.format.chunk_header import UNNAMED
from kvstitch.kvstore.format.codecs import CODECS
from kvstitch.kvstore.format.verifier import Verifier
from tests.kvstore.chunks import encoded, gathered, make_chunk, make_spec, make_tensors, tensors_of

pytestmark = pytest.mark.exhaustive


def read(chunk, layer_blocks):
    selection = block_selection(layer_blocks)
    verifier = Verifier(UNNAMED, selection=selection)
    return verifier.blocks(chunk.header, gathered(chunk, selection))


@pytest.mark.parametrize("tokens", [1, 64, 65, 300])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", CODECS)
def test_decoded_blocks_are_rows_of_the_decoded_layer(name, dtype, tokens):
    chunk = make_chunk(make_spec(name, dtype, tokens=tokens))
    last = chunk.spec.blocks - 1
    blocks, bad = read(chunk, {0: [last], 2: [last, 0], 1: range(last + 1)})
    assert not bad and list(blocks.layers) == [0, 1, 2]
    for layer in range(3):
        rows = blocks.tokens(layer)
        for got, whole in zip(blocks.layer(layer), chunk.layer(layer), strict=True):
            assert got.dtype == whole.dtype and torch.equal(got, whole[rows])
        moved = blocks.layer(layer, device="cpu", non_blocking=True)
        assert torch.equal(moved[1], chunk.layer(layer)[1][rows])
    for parts, theirs in zip(encoded(blocks, 1), encoded(chunk, 1), strict=True):
        assert all(a.equal(b) for a, b in zip(parts, theirs, strict=True))
    assert blocks.tokens(1).tolist() == list(range(tokens))
    assert blocks.tokens(0).tolist() == list(range(64 * last, tokens))
    assert blocks.count == last + 1 + 1 + len({0, last})


@pytest.mark.parametrize("name", CODECS)
def test_odd_sizes(name):
    """Tensors with an odd number of bytes leave the next tensor unaligned."""
    spec = ChunkSpec("f", name, "float32", layers=2, kv_heads=1, head_dim=3, tokens=77)
    chunk = encode_chunk(spec, *make_tensors(spec))
    blocks, bad = read(chunk, {1: [1]})
    assert not bad and torch.equal(blocks.layer(1)[0], chunk.layer(1)[0][64:])


def test_a_layer_without_blocks():
    chunk = make_chunk()
    blocks, bad = read(chunk, {1: [], 2: [0]})
    assert not bad and blocks.tokens(1).tolist() == []
    k, v = blocks.layer(1)
    assert k.shape == v.shape == (0, 2, 8) and k.dtype == torch.bfloat16
    with pytest.raises(ChunkSpecError, match="layer 0 was not asked for"):
        blocks.layer(0)


@pytest.mark.parametrize("name", CODECS)
def test_bad_blocks_are_cut_out(name):
    chunk = make_chunk(make_spec(name, tokens=300))
    for entry, block in (("k.0", 1), ("v.0", 4), ("v.2", 0)):
        start, end = tensors_of(chunk.header)[entry].blocks_range(block, block)
        chunk.data[end - 1 if block else start] ^= 0x80
    blocks, bad = read(chunk, {0: [0, 1, 2, 4], 1: [3], 2: [0]})
    assert bad == [(0, 1), (0, 4), (2, 0)]
    assert [blocks.layers[layer].blocks for layer in range(3)] == [(0, 2), (3,), ()]
    assert blocks.tokens(0).tolist() == [*range(64), *range(128, 192)]
    for got, whole in zip(blocks.layer(0), chunk.layer(0), strict=True):
        assert torch.equal(got, whole[blocks.tokens(0)])
    assert blocks.layer(2)[0].shape == (0, 2, 8)


def test_every_byte_is_under_a_digest():
    chunk = make_chunk(make_spec("int4", layers=1, tokens=66))
    assert read(chunk, {0: [0, 1]})[1] == []
    owners = {block: 0 for block in range(2)}
    for position in range(chunk.data.numel()):
        chunk.data[position] ^= 4
        [(_, block)] = read(chunk, {0: [0, 1]})[1]
        owners[block] += 1
        chunk.data[position] ^= 4
    assert owners[1] == read(chunk, {0: [1]})[0].nbytes
    assert owners[0] == read(chunk, {0: [0]})[0].nbytes


def test_bytes_of_another_length_are_corrupt():
    chunk = make_chunk()
    selection = block_selection({0: [0], 1: [1]})
    data = gathered(chunk, selection)
    with pytest.raises(ChunkCorrupt, match="the blocks have"):
        Verifier(UNNAMED, selection=selection).blocks(chunk.header, data[:-1])


def test_select_sorts():
    assert block_selection({3: [2, 0, 2], 1: (), 2: range(2)}) == {1: (), 2: (0, 1), 3: (0, 2)}
    assert list(block_selection({3: [], 1: []})) == [1, 3]


@pytest.mark.parametrize(
    ("layer_blocks", "message"),
    [
        ({3: [0]}, "layer 3 is outside a chunk of 3 layers"),
        ({-1: [0]}, "layer -1"),
        ({0: [0], 5: []}, "layer 5"),
        ({0: [0, 2]}, "block 2 is outside a chunk of 2 blocks"),
        ({0: [-1, 1]}, "block -1"),
    ],
)
def test_what_a_chunk_does_not_have(layer_blocks, message):
    check_selection(block_selection({0: [0, 1], 2: [1], 1: []}), make_spec())
    with pytest.raises(ChunkSpecError, match=message):
        check_selection(block_selection(layer_blocks), make_spec())
