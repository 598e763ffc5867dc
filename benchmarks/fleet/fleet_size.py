"""The arithmetic of a fleet's size: workers, shares of reads, Redis servers, bytes.

Bytes of chunks are exact. Everything else is arithmetic on assumptions: popularity is Zipf with
exponent 1, and each tier holds the most read chunks, as in `benchmarks.sizing`. Of the documents
that any worker holds, a part (`together`) is found at the worker that is chosen; popular ones that
are not come from Redis, and the rest from S3. What is read slower than it is computed is computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.sizing import GIB, TOKENS, Model, share_of_reads

MOST_WORKERS = 100_000
TIERS = ("memory", "ssd", "redis", "s3")


@dataclass(frozen=True)
class Load:
    """What is asked of the fleet."""

    documents: int = 100_000
    tokens: int = 2000  # of a document
    rate: float = 20.0  # requests per second
    chunks_per_request: int = 8
    question: int = 100  # tokens
    answer: int = 100  # tokens

    @property
    def chunks(self) -> int:
        """Chunks of all documents: none is shared by two."""
        return self.documents * math.ceil(self.tokens / TOKENS)


@dataclass(frozen=True)
class Machine:
    """One worker and what it reads from. Assumed: GB/s and seconds of a read, tokens per second."""

    memory_gib: float = 128.0  # memory tier
    ssd_gib: float = 1600.0
    memory_gbs: float = 25.0  # to the device
    ssd_gbs: float = 5.0
    redis_gbs: float = 1.8  # of one server
    redis_gib: float = 64.0  # of one server
    redis_covers: float = 0.8  # share of all reads whose chunks Redis has room for
    s3_gbs: float = 0.1
    s3_latency_s: float = 0.04
    repair: float = 0.15  # share of loaded rows that is computed anew
    decode_tokens_s: float = 2000.0  # of a full batch
    utilisation: float = 0.7  # of a worker's time; the rest keeps queues short
    together: float = 0.6


@dataclass(frozen=True)
class Size:
    """What it comes to.

    Attributes:
        shares: of reads, by the tier they come from, or "computed".
        seconds: of one worker per request.
    """

    workers: int
    shares: dict[str, float]
    seconds: float
    chunk_bytes: int
    kv_bytes: int
    redis_chunks: int
    redis_bytes_s: float
    redis_servers: int
    s3_gets_s: float
    precompute_s: float


def size(model: Model, codec: str, load: Load, machine: Machine) -> Size:
    """The smallest fleet that does it.

    Raises:
        ValueError: None of up to 100,000 workers does.
    """
    low, high = 1, MOST_WORKERS
    if not _enough(high, model, codec, load, machine):
        raise ValueError(f"more than {MOST_WORKERS:,} workers are needed: look at rate and times")
    while low < high:  # more workers hold more: each request costs them the same, or less
        middle = (low + high) // 2
        if _enough(middle, model, codec, load, machine):
            high = middle
        else:
            low = middle + 1
    chunk = model.chunk_bytes(codec)
    shares = _shares(low, chunk, load, machine, model)
    redis_chunks = _redis_chunks(load, machine)
    redis_bytes_s = load.rate * load.chunks_per_request * shares["redis"] * chunk
    servers = max(
        redis_bytes_s / (machine.redis_gbs * 1e9), redis_chunks * chunk / (machine.redis_gib * GIB)
    )
    return Size(
        workers=low,
        shares=shares,
        seconds=_seconds(shares, chunk, load, machine, model),
        chunk_bytes=chunk,
        kv_bytes=load.chunks * chunk,
        redis_chunks=redis_chunks,
        redis_bytes_s=redis_bytes_s,
        redis_servers=math.ceil(servers),
        s3_gets_s=load.rate * load.chunks_per_request * shares["s3"],
        precompute_s=load.chunks * TOKENS * model.prefill_s,
    )


def _enough(workers: int, model: Model, codec: str, load: Load, machine: Machine) -> bool:
    chunk = model.chunk_bytes(codec)
    shares = _shares(workers, chunk, load, machine, model)
    return (
        load.rate * _seconds(shares, chunk, load, machine, model) <= workers * machine.utilisation
    )


def _shares(
    workers: int, chunk: int, load: Load, machine: Machine, model: Model
) -> dict[str, float]:
    """Where the chunks of requests come from."""
    memory = share_of_reads(workers * machine.memory_gib * GIB / chunk, load.chunks)
    local = share_of_reads(
        workers * (machine.memory_gib + machine.ssd_gib) * GIB / chunk, load.chunks
    )
    shared = machine.redis_covers
    found = {
        "memory": machine.together * memory,
        "ssd": machine.together * (local - memory),
        "redis": (1 - machine.together) * shared + machine.together * max(0.0, shared - local),
    }
    return _unless_computing_is_faster(found, chunk, machine, model)


def _unless_computing_is_faster(
    found: dict[str, float], chunk: int, machine: Machine, model: Model
) -> dict[str, float]:
    """The planner's decision, by tier; what no faster tier has is in S3."""
    found = {**found, "s3": 1 - sum(found.values())}
    compute = TOKENS * model.prefill_s
    used = {
        tier: share if read_s(tier, chunk, machine) + machine.repair * compute < compute else 0.0
        for tier, share in found.items()
    }
    return {**used, "computed": 1 - sum(used.values())}


def read_s(tier: str, chunk: int, machine: Machine) -> float:
    gbs = {"memory": machine.memory_gbs, "ssd": machine.ssd_gbs, "redis": machine.redis_gbs,
           "s3": machine.s3_gbs}[tier]  # fmt: skip
    return chunk / (gbs * 1e9) + (machine.s3_latency_s if tier == "s3" else 0.0)


def _seconds(
    shares: dict[str, float], chunk: int, load: Load, machine: Machine, model: Model
) -> float:
    """Of a worker for one request: loading, computing, decoding."""
    compute = TOKENS * model.prefill_s
    per_chunk = shares["computed"] * compute + sum(
        shares[tier] * (read_s(tier, chunk, machine) + machine.repair * compute) for tier in TIERS
    )
    return (
        load.chunks_per_request * per_chunk
        + load.question * model.prefill_s
        + load.answer / machine.decode_tokens_s
    )


def _redis_chunks(load: Load, machine: Machine) -> int:
    """The fewest most read chunks that have `redis_covers` of the reads."""
    low, high = 0, load.chunks
    while low < high:
        middle = (low + high) // 2
        if share_of_reads(middle, load.chunks) >= machine.redis_covers:
            high = middle
        else:
            low = middle + 1
    return low
