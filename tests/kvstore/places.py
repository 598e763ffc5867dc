"""Real tiers whose bytes a test can damage, and a check of what a read of blocks gives."""

import redis
import torch

from kvstitch.kvstore import MemoryTier, RedisTier, SsdTier
from kvstitch.kvstore.tiers.ssd.directory_scan import chunk_path
from tests.kvstore.chunks import make_key, make_spec, tensors_of

KEY = make_key()
PICKED = {0: [0, 3], 2: [1, 2, 4]}
EVERYTHING = {layer: range(5) for layer in range(3)}


def spec_of(codec="raw", **fields):
    return make_spec(codec, **{"tokens": 300, **fields})


class Place:
    """One real tier, with a method that changes the stored bytes of chunk KEY."""

    def __init__(self, kind, tmp_path, url):
        self.kind = kind
        self._path = chunk_path(tmp_path, KEY)
        self._url = url
        if kind == "memory":
            self.tier: MemoryTier | SsdTier | RedisTier = MemoryTier(1 << 24)
        elif kind == "ssd":
            self.tier = SsdTier(tmp_path, 1 << 24, fsync=False)
        else:
            self.tier = RedisTier(url, timeout_s=10)

    def flip(self, header, name, block):
        """Change one byte of one block of one tensor."""
        place = tensors_of(header)[name].blocks_range(block, block)[0]
        if self.kind == "memory":
            chunk = self.tier.read(KEY)
            assert chunk is not None
            chunk.data[place] ^= 2
        elif self.kind == "ssd":
            content = bytearray(self._path.read_bytes())
            content[header.data_start + place] ^= 2
            self._path.write_bytes(content)
        else:
            layer = int(name.split(".")[1])
            with redis.Redis.from_url(self._url) as client:
                value = f"kvstitch:{{{KEY}}}:{layer}"
                at = place - header.layer_range(layer)[0]
                byte = client.getrange(value, at, at)[0]
                client.setrange(value, at, bytes([byte ^ 2]))


def check(outcome, chunk, picked):
    """All requested blocks are there and decode to the rows of the chunk."""
    assert not outcome.missing and set(outcome.blocks.layers) == set(picked)
    for layer, wanted in picked.items():
        assert outcome.blocks.layers[layer].blocks == tuple(sorted(wanted))
        rows = outcome.blocks.tokens(layer)
        for got, whole in zip(outcome.blocks.layer(layer), chunk.layer(layer), strict=True):
            assert torch.equal(got, whole[rows])
