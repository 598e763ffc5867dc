"""Stores the KV caches of text chunks in tiers: memory, SSD, Redis, S3.

Importing this package needs only torch, numpy and xxhash. redis is imported when used.

    with TieredStore([MemoryTier(8 << 30), SsdTier(path, 200 << 30)]) as store:
        store.put(key, encode_chunk(spec, k, v))
        outcome = store.read(key, expect=spec)
        some = store.read_blocks(key, {0: [0, 3], 1: [2]}, expect=spec)  # layer -> blocks
"""

from kvstitch.kvstore.errors import (
    ChunkCorrupt,
    ChunkError,
    ChunkLocked,
    ChunkRefused,
    ChunkSpecError,
    KvStoreError,
    StoreConfigError,
    TierError,
    TierFull,
    TierTimeout,
    TierUnavailable,
)
from kvstitch.kvstore.format.chunk import EncodedBlocks, EncodedChunk, encode_chunk
from kvstitch.kvstore.format.chunk_header import ChunkHeader, chunk_file_bytes, parse_header
from kvstitch.kvstore.format.chunk_identity import BLOCK_TOKENS, ChunkSpec, chunk_key
from kvstitch.kvstore.outcomes import (
    BadBlock,
    BlocksOutcome,
    ExtraOutcome,
    ReadOutcome,
    ReadProblem,
    StoreStats,
    TierStats,
)
from kvstitch.kvstore.store import TieredStore
from kvstitch.kvstore.tiers.memory_tier import MemoryTier
from kvstitch.kvstore.tiers.redis.redis_tier import RedisTier
from kvstitch.kvstore.tiers.ssd.ssd_tier import SsdTier

__all__ = [
    "BLOCK_TOKENS",
    "BadBlock",
    "BlocksOutcome",
    "ChunkCorrupt",
    "ChunkError",
    "ChunkHeader",
    "ChunkLocked",
    "ChunkRefused",
    "ChunkSpec",
    "ChunkSpecError",
    "EncodedBlocks",
    "EncodedChunk",
    "ExtraOutcome",
    "KvStoreError",
    "MemoryTier",
    "ReadOutcome",
    "ReadProblem",
    "RedisTier",
    "SsdTier",
    "StoreConfigError",
    "StoreStats",
    "TierError",
    "TierFull",
    "TierStats",
    "TierTimeout",
    "TierUnavailable",
    "TieredStore",
    "chunk_file_bytes",
    "chunk_key",
    "encode_chunk",
    "parse_header",
]
