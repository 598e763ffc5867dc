"""Stores the KV caches of text chunks in tiers: memory, SSD, Redis, S3.

Importing this package needs only torch, numpy and xxhash. redis is imported when used.

    with TieredStore([MemoryTier(8 << 30), SsdTier(path, 200 << 30)]) as store:
        store.put(key, encode_chunk(spec, k, v))
        outcome = store.read(key, expect=spec)
        some = store.read_blocks(key, {0: [0, 3], 1: [2]}, expect=spec)  # layer -> blocks
"""

from kvstitch.kvstore.errors import ChunkCorrupt as ChunkCorrupt
from kvstitch.kvstore.errors import ChunkError as ChunkError
from kvstitch.kvstore.errors import ChunkLocked as ChunkLocked
from kvstitch.kvstore.errors import ChunkRefused as ChunkRefused
from kvstitch.kvstore.errors import ChunkSpecError as ChunkSpecError
from kvstitch.kvstore.errors import KvStoreError as KvStoreError
from kvstitch.kvstore.errors import StoreConfigError as StoreConfigError
from kvstitch.kvstore.errors import TierError as TierError
from kvstitch.kvstore.errors import TierFull as TierFull
from kvstitch.kvstore.errors import TierTimeout as TierTimeout
from kvstitch.kvstore.errors import TierUnavailable as TierUnavailable
from kvstitch.kvstore.format.chunk import EncodedBlocks as EncodedBlocks
from kvstitch.kvstore.format.chunk import EncodedChunk as EncodedChunk
from kvstitch.kvstore.format.chunk import encode_chunk as encode_chunk
from kvstitch.kvstore.format.chunk_header import ChunkHeader as ChunkHeader
from kvstitch.kvstore.format.chunk_header import chunk_file_bytes as chunk_file_bytes
from kvstitch.kvstore.format.chunk_header import parse_header as parse_header
from kvstitch.kvstore.format.chunk_identity import BLOCK_TOKENS as BLOCK_TOKENS
from kvstitch.kvstore.format.chunk_identity import ChunkSpec as ChunkSpec
from kvstitch.kvstore.format.chunk_identity import chunk_key as chunk_key
from kvstitch.kvstore.outcomes import BadBlock as BadBlock
from kvstitch.kvstore.outcomes import BlocksOutcome as BlocksOutcome
from kvstitch.kvstore.outcomes import ExtraOutcome as ExtraOutcome
from kvstitch.kvstore.outcomes import ReadOutcome as ReadOutcome
from kvstitch.kvstore.outcomes import ReadProblem as ReadProblem
from kvstitch.kvstore.outcomes import StoreStats as StoreStats
from kvstitch.kvstore.outcomes import TierStats as TierStats
from kvstitch.kvstore.store import TieredStore as TieredStore
from kvstitch.kvstore.tiers.memory_tier import MemoryTier as MemoryTier
from kvstitch.kvstore.tiers.redis.redis_tier import RedisTier as RedisTier
from kvstitch.kvstore.tiers.ssd.ssd_tier import SsdTier as SsdTier
