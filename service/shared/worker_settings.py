"""The worker's slice of the settings: a plain dataclass, handed down as JSON when it is spawned."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Self

MIB = 1024 * 1024


@dataclass(frozen=True)
class WorkerSettings:
    """Everything the worker process needs. Bytes, tokens and seconds where the name says so."""

    model: str  # a local Hugging Face folder
    address: str  # ZeroMQ address the worker binds, e.g. ipc:///tmp/x/worker.sock
    kv_dir: str  # SSD tier; empty: no SSD tier
    log_format: str = "text"  # or json
    fleet_secret: str = ""  # what gateways and workers that use TCP prove to each other
    calibration: str = ""  # file that `kvstitch tune` wrote; empty: only the model folder's
    model_name: str = ""  # what it is called in answers; empty: the folder's name
    loras: dict[str, str] = field(default_factory=dict)  # LoRA adapters' folders by their names
    dtype: str = "auto"  # auto: bfloat16, or the checkpoint's own where the device lacks it
    device: str = "auto"  # auto: cuda where there is one, else cpu
    quantize: str = "off"  # off, int8 or int4: weights rounded when they are loaded
    codec: str = "raw"
    memory_tier_bytes: int = 2048 * MIB
    ssd_tier_bytes: int = 32 * 1024 * MIB
    redis_url: str = ""  # empty: no Redis tier
    redis_ttl_s: int = 0  # 0: keep until Redis evicts
    write_tiers: str = ""  # names of the tiers that get computed chunks; empty: all
    write_through: bool = False  # whether a chunk is stored only when all of these have taken it
    pool_tokens: int = 0  # 0: derived from the model's context and free memory
    max_running: int = 32
    max_waiting: int = 256
    planner: bool = True  # whether to compute what would take longer to load
    sketches: bool = False  # whether one is computed with every chunk
    draft_tokens: int = 7  # most answer tokens drafted from the prompt in a step; 0: none
    prefill_graphs: bool = True  # whether layers are recorded and replayed on a GPU
    prefix_cache: bool = True  # whether answered prompts are kept for those that begin with them
    gate_sample: float = 0.0  # share of answers held against full prefill; 0: no gate
    gate_window: int = 32
    gate_min_checks: int = 8
    gate_min_agreement: float = 0.75
    gate_max_kl: float = 0.5  # nats
    gate_recovery: int = 32
    workers: int = 1  # workers of the service; with more than one, kv_dir is theirs together
    number: int = 0  # of this one among them
    shared: bool = False  # it runs by itself: several gateways use it, none of them ends it
    threads: int = 0  # 0: torch's default
    loader_threads: int = 4
    methods_dir: str = ""  # fusion/ and eviction/ files of the operator's own; empty: none
    otlp_endpoint: str = ""  # collector of traces; empty: none
    tenant_secret: str = ""  # hex; keys the chunk keys of the unnamed tenant
    plugins: dict[str, Any] = field(default_factory=dict)  # settings that plugins declare
    plugin_tiers: list[str] = field(default_factory=list)  # names of tiers of plugins that are set
    tenants_secret: str = ""  # hex; what those of named tenants are derived from

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))
