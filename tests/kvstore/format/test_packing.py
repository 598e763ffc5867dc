import itertools

import pytest
import torch

from kvstitch.kvstore.format.codecs import dequantise, pack, quantise, unpack


@pytest.mark.parametrize("bits", [2, 4])
def test_packing_is_a_bijection(bits):
    """Every byte value belongs to exactly one row of codes, in both directions."""
    rows = torch.tensor(
        list(itertools.product(range(2**bits), repeat=8 // bits)), dtype=torch.uint8
    )
    packed = pack(rows, bits)
    assert sorted(packed.flatten().tolist()) == list(range(256))
    assert torch.equal(unpack(packed, bits, 8 // bits), rows)
    every_byte = torch.arange(256, dtype=torch.uint8).view(16, 16)
    assert torch.equal(pack(unpack(every_byte, bits, 16 * 8 // bits), bits), every_byte)


@pytest.mark.parametrize(("bits", "length"), [(2, 1), (2, 3), (2, 9), (4, 1), (4, 8)])
def test_packing_any_length(bits, length):
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 2**bits, (3, 2, length), generator=generator, dtype=torch.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (3, 2, -(-length * bits // 8))
    assert torch.equal(unpack(packed, bits, length), codes)


def test_the_first_code_is_in_the_lowest_bits():
    assert pack(torch.tensor([1, 2, 3, 0, 2], dtype=torch.uint8), 2).tolist() == [0b00111001, 2]
    assert pack(torch.tensor([7, 12, 5], dtype=torch.uint8), 4).tolist() == [0xC7, 0x05]


def test_against_the_formula():
    x = torch.tensor([[0.0, 1.0, 2.0, 15.0, 7.4], [-4.0, -4.0, -4.0, -4.0, 8.0]])
    codes, scale, minimum = quantise(x, axis=1, group=4, bits=4)
    assert scale.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert minimum.flatten().tolist() == pytest.approx([0.0, 7.4, -4.0, 8.0])
    assert codes.tolist() == [[0, 1, 2, 15, 0], [0, 0, 0, 0, 0]]
    assert torch.equal(dequantise(codes, scale, minimum, axis=1, group=4), x)
