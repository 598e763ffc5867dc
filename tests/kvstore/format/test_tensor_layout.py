from dataclasses import replace

import pytest
import torch

from kvstitch.kvstore import ChunkSpecError, encode_chunk
from kvstitch.kvstore.format.codecs import CODECS
from kvstitch.kvstore.format.tensor_layout import blocks_layout, consecutive_runs, layer_entries
from tests.kvstore.chunks import make_spec, make_tensors

pytestmark = pytest.mark.exhaustive

CASES = [
    (1, (0,)),
    (64, (0,)),
    (65, (0,)),
    (65, (1,)),
    (65, (0, 1)),
    (300, (1, 2)),
    (300, (0, 2, 4)),
    (300, (3, 4)),
    (300, (0, 1, 2, 3, 4)),
]


@pytest.mark.parametrize(("tokens", "blocks"), CASES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", CODECS)
def test_the_bytes_of_some_blocks_are_a_layer_of_their_tokens(name, dtype, tokens, blocks):
    """The ranges, read one after the other, equal the encoding of only those tokens."""
    spec = make_spec(name, dtype, tokens=tokens)
    k, v = make_tensors(spec)
    chunk = encode_chunk(spec, k, v)
    rows = torch.cat([torch.arange(*spec.block_span(block)) for block in blocks])
    alone = encode_chunk(
        replace(spec, tokens=len(rows)), [t[rows] for t in k], [t[rows] for t in v]
    )
    places = blocks_layout(spec, blocks)
    assert places.tokens == len(rows)
    for layer in range(spec.layers):
        base = layer_entries(spec, layer)[0].start
        read = torch.cat([chunk.data[base + start : base + end] for start, end in places.ranges])
        assert torch.equal(read, alone.layer_bytes(layer)) and len(read) == places.nbytes
        digests = [chunk.header.digests[entry.name] for entry in layer_entries(spec, layer)]
        for of_tensor, pieces in zip(digests, places.pieces, strict=True):
            assert not of_tensor.differing(blocks, [read[piece].numpy().data for piece in pieces])


def test_neighbours_are_one_range():
    spec = make_spec("int8", tokens=300)
    assert len(blocks_layout(spec, (1, 2)).ranges) == 4
    assert len(blocks_layout(spec, (0, 2)).ranges) == 8
    # The last block of k and the first of v touch.
    assert len(blocks_layout(spec, (0, 4)).ranges) == 5
    assert len(blocks_layout(spec, (0, 1, 2, 3, 4)).ranges) == 1


def test_no_blocks():
    places = blocks_layout(make_spec(), ())
    assert (places.tokens, places.nbytes, places.ranges, places.pieces) == (0, 0, (), ())


def test_layer_outside_the_chunk():
    for layer in (-1, 3):
        with pytest.raises(ChunkSpecError, match=f"layer {layer}"):
            layer_entries(make_spec(), layer)


@pytest.mark.parametrize(
    ("numbers", "runs"),
    [
        ([], []),
        ([4], [(4, 4)]),
        ([0, 1, 2], [(0, 2)]),
        ([0, 2, 3, 7], [(0, 0), (2, 3), (7, 7)]),
    ],
)
def test_consecutive_runs(numbers, runs):
    assert list(consecutive_runs(numbers)) == runs
