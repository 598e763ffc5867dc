"""kvstore needs only torch, numpy and xxhash."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
absent = "redis fastapi pydantic faiss transformers msgspec"
for name in absent.split():
    sys.modules[name] = None
import torch
from kvstitch import kvstore
from kvstitch.kvstore import ChunkSpec, MemoryTier, RedisTier, TierError, TieredStore, encode_chunk
spec = ChunkSpec("f", "raw", "float32", 1, 1, 2, 3)
chunk = encode_chunk(spec, [torch.ones(3, 1, 2)], [torch.ones(3, 1, 2)])
with TieredStore([MemoryTier(1 << 20)]) as store:
    assert store.put("0" * 32, chunk) and store.read("0" * 32, spec).chunk.data is chunk.data
    assert store.read_blocks("0" * 32, {0: [0]}, spec).blocks.layer(0)[0].sum() == 6
    assert store.put_extra("0" * 32, "sketch", 1, {"t": torch.ones(2)})
    assert store.read_extra("0" * 32, "sketch", 1).tensors["t"].sum() == 2
for tier, advice in (
    (RedisTier("redis://localhost"), "pip install redis"),
    (RedisTier("redis+cluster://localhost"), "pip install redis"),
):
    try:
        TieredStore([tier]).start()
    except TierError as error:
        assert advice in str(error)
    else:
        raise SystemExit(f"{tier.name} started without its package")
others = ("kvstitch.service", "kvstitch.retriever")
assert not [name for name in sys.modules if name.startswith(others)]
"""


def test_bare_import():
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, cwd=root, timeout=120)
