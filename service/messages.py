"""Everything the gateway and the worker say to each other, one typed message per fact.

msgspec tagged structs; no pickle, no paths. Every `Generate` ends in exactly one `Done` or
`Failed`; every `Precompute` in one `Precomputed` per chunk; every `Purge` in one `Purged`.
Durations are seconds taken inside one process's monotonic clock.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base: the struct's name is its tag on the wire."""


# -- gateway to worker ---------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message of a gateway; answered by `Ready` as soon as the model is loaded."""


class Chunk(msgspec.Struct, frozen=True):
    """One retrieved document segment D_i. `ids` are the truth; `chunk_id` is the catalog's."""

    chunk_id: int
    ids: list[int]


class Method(msgspec.Struct, frozen=True):
    """A fusion or eviction method by name with its parameters (checked against its schema)."""

    name: str
    parameters: dict[str, Any] = {}


class Sampling(msgspec.Struct, frozen=True):
    max_tokens: int = 128
    temperature: float = 0.0  # 0 is greedy
    top_p: float = 1.0
    seed: int | None = None  # None: drawn by the worker


class Generate(Message, frozen=True):
    """Answer prompt S ‖ D_1..D_k ‖ Q. Replies: `Tokens`…, then one `Done` or `Failed`."""

    id: str
    system: list[int]
    documents: list[Chunk]
    question: list[int]
    fusion: Method
    eviction: Method | None = None
    sampling: Sampling = Sampling()
    prefix_mode: str = "none"
    tenant: str = ""


class Abort(Message, frozen=True):
    """Stop a sequence (disconnect, stop string). Answered by its `Done` with that reason."""

    id: str
    reason: str  # "disconnect" | "stop" | "deadline"


class Prefetch(Message, frozen=True):
    """These chunks will be asked for: bring them into the memory tier. No reply."""

    system: list[int]
    documents: list[Chunk]
    prefix_mode: str = "none"
    tenant: str = ""


class Precompute(Message, frozen=True):
    """Prefill these chunks in the background and store them. Replies: `Precomputed` per chunk."""

    id: str
    system: list[int]
    documents: list[Chunk]
    prefix_mode: str = "none"
    tenant: str = ""


class Purge(Message, frozen=True):
    """Delete these chunks' KV from every tier. Reply: `Purged`."""

    id: str
    system: list[int]
    documents: list[Chunk]
    prefix_mode: str = "none"
    tenant: str = ""


class Shutdown(Message, frozen=True):
    """Finish what runs, flush the store, exit."""


# -- worker to gateway ---------------------------------------------------------------------------


class ModelInfo(msgspec.Struct, frozen=True):
    name: str
    fingerprint: str
    family: str
    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    max_context: int  # tokens of prompt + answer
    kv_bytes_per_token: int
    codec: str
    device: str


class MethodInfo(msgspec.Struct, frozen=True):
    name: str
    doc: str
    parameters: dict[str, dict[str, Any]]  # service.parameters.Schema


class Ready(Message, frozen=True):
    model: ModelInfo
    fusion: list[MethodInfo]
    eviction: list[MethodInfo]
    pool_tokens: int  # KV pool capacity in tokens


class TokenItem(msgspec.Struct, frozen=True):
    id: str
    token: int


class Tokens(Message, frozen=True):
    """The tokens of one decode step, for all running sequences."""

    items: list[TokenItem]


class SegmentReport(msgspec.Struct, frozen=True):
    """What happened to one segment. `tier` is where its KV came from: memory, ssd, redis, or
    "cold" when it was recomputed because no usable copy existed (`problems` says why)."""

    chunk_id: int
    tokens: int
    tier: str
    bytes: int
    load_s: float
    rows_recomputed: int
    problems: list[str] = []  # e.g. "ssd: corrupt"


class Report(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # prompt tokens whose stored KV was used at the last layer
    recomputed_tokens: int  # prompt tokens recomputed at the last layer, cold ones included
    system: SegmentReport
    documents: list[SegmentReport]
    rows_per_layer: list[int]
    kept_per_layer: list[float]  # KV entries per layer after eviction, mean over KV heads
    stages: dict[str, float]  # queue, load, prefill, evict, first_token, decode
    decode_steps: int
    seed: int | None = None
    warnings: list[str] = []


class Done(Message, frozen=True):
    """finish_reason: "stop" (end token or stop string), "length", or the abort's reason."""

    id: str
    finish_reason: str
    report: Report


class Failed(Message, frozen=True):
    """The request or call `id` cannot be answered. `code` is one of service.errors."""

    id: str
    code: str
    message: str
    field: str | None = None


class Precomputed(Message, frozen=True):
    """One chunk of a `Precompute`. status: "stored", "present" (already there) or "failed"."""

    id: str
    chunk_id: int
    status: str
    bytes: int
    seconds: float
    message: str = ""


class Purged(Message, frozen=True):
    id: str
    copies: dict[str, int]  # per tier


class Stats(Message, frozen=True):
    """Sent about every second: the worker's heartbeat and its counters since start.

    counters: flat "name{label=value,…}" is avoided; each entry is (metric, labels, value) with
    the metric declared in service.metrics.
    """

    values: list[tuple[str, dict[str, str], float]]
    running: int
    waiting: int
    pool_free: float  # share of the KV pool that is free


ToWorker = Hello | Generate | Abort | Prefetch | Precompute | Purge | Shutdown
FromWorker = Ready | Tokens | Done | Failed | Precomputed | Purged | Stats
