"""The settings of the service: read once at the entry point, and frozen.

Every field is an environment variable with the prefix `KVSTITCH_` (`KVSTITCH_DATA_DIR`,
`KVSTITCH_REDIS_URL`, …); the command line overrides them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service import fleet_secret
from service.errors import InvalidSetting
from service.prompt import PREFIX_MODES
from service.records import ColdMode
from service.worker_settings import MIB, WorkerSettings

PREFIX = "KVSTITCH_"
MIN_SECRET_CHARS = 16
_LORA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
WORKER_SCHEMES = ("tcp", "dns", "ray", "ipc")
REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "redis+cluster://", "rediss+cluster://")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+", re.IGNORECASE)


def default_data_dir() -> Path:
    """`$XDG_DATA_HOME/kvstitch`, by default ~/.local/share/kvstitch."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "kvstitch"


def default_model_cache() -> Path:
    """`$XDG_CACHE_HOME/kvstitch/models`, by default ~/.cache/kvstitch/models."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvstitch" / "models"


def demo_model() -> Path:
    """The embedded default model: `demo_model` in the installed `service` package."""
    return Path(__file__).parent / "demo_model"


class Settings(BaseSettings):
    """All settings of one service. Make it with `load`, which explains wrong values."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True
    )

    # The model and where things are kept.
    model: str = Field(
        "",
        description="model folder, .gguf file, Hugging Face id or name (smollm2); "
        "empty: the demo model",
    )
    tool_form: Literal["auto", "hermes", "llama3_json", "mistral"] = Field(
        "auto", description="how the model writes calls of tools; auto: as its chat template does"
    )
    lora: str = Field(
        "",
        description="LoRA adapters beside the model: NAME=FOLDER, by commas; PEFT's folders",
    )
    lora_precompute: str = Field(
        "",
        description="names of adapters, by commas, with which documents are computed as they come "
        "in, besides the model itself; of others, when a request first needs them",
    )
    model_cache: Path = Field(
        default_factory=default_model_cache, description="folders made of .gguf files"
    )
    database: str = Field(
        "",
        description="PostgreSQL for documents, jobs and keys, which several gateways share, "
        "postgresql://user:password@host/name; empty: files in data_dir",
    )
    vectors: Literal["faiss", "pgvector"] = Field(
        "faiss",
        validate_default=True,
        description="where vectors are searched: in each gateway's memory, or in the database",
    )
    data_dir: Path = Field(default_factory=default_data_dir, description="documents, jobs, KV")
    calibration: str = Field(
        "",
        description="file that `kvstitch tune` wrote; empty: calibration.json in data_dir, else in "
        "the model's folder; off: none",
    )
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0: any free one")

    allow_anonymous: bool = Field(
        False, description="serve without API keys, also on addresses that others can reach"
    )

    allowed_hosts: str = Field(
        "",
        description="names in the Host header, separated by commas, *: any; "
        "empty: loopback names where host is one, else any",
    )
    allowed_origins: str = Field(
        "", description="other sites whose pages may write, https://host:port, by commas; *: any"
    )
    cors_origins: str = Field(
        "",
        description="other sites whose pages may use the API, reading included, "
        "https://host:port, by commas; *: any; empty: none",
    )

    # The engine.
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="worker processes, each with the model; they share memory_tier_mib, the SSD "
        "tier and the cores",
    )
    worker_addresses: str = Field(
        "",
        description="workers that run by themselves, instead of own processes: "
        "tcp://host:port by commas, dns://name:port for all addresses of a name, or ray://",
    )
    fleet_secret: str = Field(
        "",
        validate_default=True,
        repr=False,
        description="what gateways and workers prove to each other over TCP; 32 characters or "
        "more, the same for all",
    )
    worker_lease_s: float = Field(
        600.0,
        ge=5,
        description="a worker that runs by itself and hears nothing of us for so long drops what "
        "only it holds, because it may have missed deletions",
    )
    routing: Literal["cost", "round_robin", "least_load", "longest_prefix"] = Field(
        "cost",
        description="how a worker is chosen where there are several; cost: by what each holds, "
        "and how long it would take",
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    device: str = Field(
        "auto",
        description="auto, cpu, cuda or cuda:N; several by commas: one worker each, in turns",
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        le=64,
        description="processes of this machine that share the model: each computes a part of every "
        "layer's heads and holds their weights and KV; 1: the worker alone",
    )
    quantize: Literal["off", "int8", "int4"] = Field(
        "off", description="weights of linear layers rounded to so many bits when they are loaded"
    )
    codec: Literal["int2", "int4", "int8", "raw"] = Field("raw", description="how KV is stored")
    memory_tier_mib: int = Field(2048, ge=0, description="memory tier; 0: none")
    ssd_tier_gib: float = Field(32.0, ge=0, description="SSD tier below data_dir; 0: none")
    redis_url: str = Field(
        "",
        description="shared tier, redis://host:port/db, or redis+cluster://host:port,host:port of "
        "a Redis Cluster; empty: none",
    )
    redis_ttl_s: int = Field(0, ge=0, description="0: until Redis evicts")
    s3_url: str = Field("", description="cold tier, s3://bucket/prefix; empty: none")
    s3_endpoint: str = Field("", description="URL of the S3 server; empty: AWS")
    s3_region: str = Field("", description="empty: AWS_REGION, or us-east-1")
    write_tiers: str = Field(
        "",
        description="tiers besides memory that get computed KV, e.g. ssd,s3; the others get copies "
        "of what is read from slower ones; empty: all",
    )
    pool_tokens: int = Field(0, ge=0, description="KV pool of running prompts; 0: derived")
    max_running: int = Field(32, ge=1, description="sequences decoded together")
    max_waiting: int = Field(256, ge=0, description="requests that may wait for a place")
    max_waiting_tokens: int = Field(
        1_048_576, ge=1, description="prompt tokens that may be before their first answer token"
    )
    planner: bool = Field(
        True, description="compute documents that would take longer to load than to compute"
    )
    sketches: bool = Field(
        False,
        description="compute with every chunk what SamKV selects blocks by; else at a document's "
        "first SamKV request",
    )
    prefix_cache: bool = Field(
        True,
        description="keep answered prompts in free KV memory, so that the same prompt again, or "
        "the next turn of a conversation, computes only what is new",
    )
    stored_prompts_gib: float = Field(
        4.0,
        ge=0,
        description="kept prompts on disk beside the SSD tier, so that conversations and repeated "
        "prompts are continued after a restart, or when the KV pool has given them up; 0: none",
    )
    draft_tokens: int = Field(
        7,
        ge=0,
        le=31,
        description="most answer tokens that a decode step drafts from the prompt; a draft is kept "
        "as far as it is what is sampled anyway; 0 for none",
    )
    cold: ColdMode = Field(
        "in_context",
        description="how chunks that are not stored are computed, where a request does not say: "
        "in the prompt's context, or by themselves (as_stored)",
    )
    gate_sample: float = Field(
        0.0, ge=0, le=1, description="share of answers held against full prefill; 0: no gate"
    )
    gate_window: int = Field(32, ge=1, le=10_000, description="checks a method is judged by")
    gate_min_checks: int = Field(8, ge=1, description="checks before it is judged")
    gate_min_agreement: float = Field(0.75, ge=0, le=1, description="of most likely tokens")
    gate_max_kl: float = Field(0.5, gt=0, description="mean KL to full prefill, in nats")
    gate_recovery: int = Field(32, ge=1, le=10_000, description="good checks until a step back")
    threads: int = Field(0, ge=0, description="CPU threads of a worker; 0: its share of the cores")
    methods_dir: Path | None = Field(
        None, description="folder with fusion/*.py and eviction/*.py of your own; none: built in"
    )
    tenant_secret: str = Field("", pattern=r"^([0-9a-fA-F]{2})*$", description="hex; keys chunks")

    # Retrieval and prompt; None: the model folder's kvstitch.json, or the built-in default.
    embedder: str = Field(
        "",
        description="folder of a sentence-embedding model, or its name at embedder_url; "
        "empty: all-MiniLM-L6-v2",
    )
    embedder_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="of a local embedder; auto: bfloat16 where the CPU multiplies it"
    )
    embedder_url: str = Field("", description="base of an OpenAI-like API, http://host:port/v1")
    embedder_key: str = Field("", description="bearer token for embedder_url")
    embedder_revision: str = Field("", description="change it with the model behind embedder_url")
    reranker_url: str = Field("", description="a rerank endpoint, http://host:port/rerank")
    reranker_style: Literal["tei", "cohere"] = Field("tei", description="cohere: Jina, vLLM too")
    reranker_model: str = Field("", description="its name at reranker_url, where one is asked for")
    reranker_key: str = Field("", description="bearer token for reranker_url")
    rerank_deadline_s: float = Field(0.3, gt=0, description="then the order of the search stays")
    retrieval: Literal["dense", "sparse", "hybrid"] = Field(
        "hybrid", description="how passages are searched where a request does not say"
    )
    exact_vectors: int = Field(
        200_000, ge=1000, description="chunks of a collection up to which vector search is exact; "
        "above, it reads as many lists as find 99 % of the ten best"
    )  # fmt: skip
    condense: Literal["off", "join", "model"] = Field(
        "join",
        description="what is searched for a question that follows others, where a request does "
        "not say: the question, joined with earlier ones, or rewritten by the model",
    )
    chunk_tokens: int | None = Field(None, ge=16, le=32768)
    top_k: int | None = Field(None, ge=0, le=1024)
    prefix_mode: str | None = None
    companions: int = Field(
        3, ge=1, le=16, description="chunks that others are computed behind: primer, neighbours"
    )

    # Limits of one call.
    max_top_k: int = Field(64, ge=1)
    max_question_chars: int = Field(65_536, ge=1)
    max_texts: int = Field(2048, ge=1, description="in one call of /v1/embeddings or /v1/rerank")
    max_texts_chars: int = Field(1_048_576, ge=1, description="of all texts of such a call")
    rerank_timeout_s: float = Field(
        30.0, gt=0, description="for /v1/rerank; answers and searches have rerank_deadline_s"
    )
    max_request_bytes: int = Field(8 * MIB, ge=1024, description="body of any call but an ingest")
    max_body_bytes: int = Field(64 * MIB, ge=1024, description="body of an ingest call")
    max_body_values: int = Field(
        250_000, ge=100, description="values in one JSON body, nested ones counted"
    )
    max_upload_bytes: int = Field(
        1024 * MIB, ge=1024, description="JSON lines and forms, which are read as they come"
    )
    header_timeout_s: float = Field(
        20.0, gt=0, description="for the header of a request; then the connection is closed"
    )
    body_timeout_s: float = Field(
        30.0, gt=0, description="for a body, and a second more for every 16 KiB of it; then 408"
    )
    reading_timeout_s: float = Field(
        60.0, gt=0, description="in which a client takes nothing of its answer; then it is cut off"
    )
    max_in_flight_per_key: int = Field(
        0, ge=0, description="answers of one API key at a time; 0: half of all that may be"
    )
    max_documents: int = Field(10_000, ge=1, description="documents in one ingest call")
    max_document_bytes: int = Field(32 * MIB, ge=1024, description="one document that is text")
    max_pdf_bytes: int = Field(64 * MIB, ge=1024, description="one PDF, Office or EPUB file")
    max_file_pages: int = Field(
        2000, ge=1, description="pages, slides, sheets or chapters of one file"
    )
    max_file_chars: int = Field(10_000_000, ge=1, description="text of one file that is parsed")
    file_cpu_s: int = Field(60, ge=1, description="CPU that reading one file may take")
    file_memory_mib: int = Field(1024, ge=128, description="memory that reading one file may take")
    max_tokens_limit: int = Field(65_536, ge=1)

    # Limits of a tenant (see also `kvstitch keys create`); None: no limit.
    tenant_max_documents: int | None = Field(None, ge=0)
    tenant_max_bytes: int | None = Field(None, ge=0, description="text stored, UTF-8")
    tenant_requests_per_minute: int | None = Field(None, ge=1)
    tenant_tokens_per_minute: int | None = Field(None, ge=1, description="of prompt and answer")

    otlp_endpoint: str = Field(
        "", description="OpenTelemetry collector, http://host:4318; empty: nothing is traced"
    )
    pin_check_s: float = Field(60.0, gt=0, description="pause between looks at pinned KV")
    job_retention_days: float = Field(
        30.0, ge=0, description="then ended jobs and their idempotency keys are forgotten; 0: never"
    )
    webhook_url: str = Field(
        "", description="told of every ingest job that ends, http(s)://…; empty: nobody is"
    )
    webhook_secret: str = Field(
        "",
        validate_default=True,
        description="signs what webhook_url is sent; 16 characters or more",
    )
    stream_ping_s: float = Field(15.0, gt=0, description="silence before a stream is pinged")
    drain_timeout_s: float = Field(30.0, ge=0, description="open streams may finish this long")

    @field_validator("lora")
    @classmethod
    def _named_folders(cls, value: str) -> str:
        names = [part.partition("=")[0].strip() for part in _parts(value)]
        for part, name in zip(_parts(value), names, strict=True):
            if not _LORA_NAME.fullmatch(name) or not part.partition("=")[2].strip():
                raise ValueError(
                    f"{part!r} is not NAME=FOLDER with a name of up to 64 letters, digits, ., _, -"
                )
            if names.count(name) > 1:
                raise ValueError(f"the name {name} is given twice")
        return value

    @field_validator("lora_precompute")
    @classmethod
    def _known_adapters(cls, value: str, info: ValidationInfo) -> str:
        known = _named_folders(info.data.get("lora", ""))
        for name in _parts(value):
            if name not in known:
                names = ", ".join(known) or "none"
                raise ValueError(f"there is no adapter {name!r}: lora names {names}")
        return value

    @field_validator("prefix_mode")
    @classmethod
    def _known_prefix_mode(cls, value: str | None) -> str | None:
        if value is not None and value not in PREFIX_MODES:
            raise ValueError(f"must be one of {', '.join(PREFIX_MODES)}")
        return value

    @field_validator("worker_addresses")
    @classmethod
    def _reachable(cls, value: str, info: ValidationInfo) -> str:
        parts = _parts(value)
        for part in parts:
            scheme, _, rest = part.partition("://")
            port = rest.rpartition(":")[2]
            if scheme not in WORKER_SCHEMES:
                raise ValueError(
                    f"{part!r} must be {', '.join(f'{name}://' for name in WORKER_SCHEMES)}"
                )
            if scheme in ("tcp", "dns") and not (port.isdigit() and 0 < int(port) < 65536):
                raise ValueError(f"{part!r} has no port: write {scheme}://host:5700")
            if scheme in ("dns", "ray") and len(parts) > 1:
                raise ValueError(f"{part!r} must stand alone: it names all workers")
        if value and info.data.get("workers", 1) > 1:
            raise ValueError("workers (KVSTITCH_WORKERS) would start others: set one of both")
        return ",".join(parts)

    @field_validator("fleet_secret")
    @classmethod
    def _secret_enough(cls, value: str, info: ValidationInfo) -> str:
        addresses = _parts(info.data.get("worker_addresses", ""))
        try:
            if value:
                fleet_secret.check(value)
            for address in addresses:  # of ray://, when the workers' addresses are known
                fleet_secret.require_secret(address.replace("dns://", "tcp://"), value)
        except InvalidSetting as error:
            raise ValueError(error.message) from None
        return value

    @field_validator("cors_origins")
    @classmethod
    def _exact_origins(cls, value: str) -> str:
        for origin in filter(None, map(str.strip, value.split(","))):
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is no origin: write scheme://host or scheme://host:port, "
                    "without a path, as browsers send it"
                )
        return value

    @field_validator("webhook_secret")
    @classmethod
    def _long_enough(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("webhook_url") and len(value) < MIN_SECRET_CHARS:
            raise ValueError(f"must have at least {MIN_SECRET_CHARS} characters with webhook_url")
        return value

    @field_validator("embedder_url", "reranker_url", "otlp_endpoint", "webhook_url")
    @classmethod
    def _http_scheme(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        return value

    @field_validator("database")
    @classmethod
    def _postgresql_scheme(cls, value: str) -> str:
        if value and not value.startswith(("postgresql://", "postgres://")):
            raise ValueError("must start with postgresql://")
        return value

    @field_validator("vectors")
    @classmethod
    def _in_a_database(cls, value: str, info: ValidationInfo) -> str:
        if value == "pgvector" and not info.data.get("database"):
            raise ValueError("pgvector needs a database (KVSTITCH_DATABASE)")
        return value

    @field_validator("redis_url")
    @classmethod
    def _redis_scheme(cls, value: str) -> str:
        if value and not value.startswith(REDIS_SCHEMES):
            raise ValueError(f"must start with {', '.join(REDIS_SCHEMES)}")
        return value

    @field_validator("s3_url")
    @classmethod
    def _s3_scheme(cls, value: str) -> str:
        scheme, _, bucket = value.partition("://")
        if value and (scheme != "s3" or not bucket.partition("/")[0]):
            raise ValueError("must be s3://bucket or s3://bucket/prefix")
        return value

    @field_validator("write_tiers")
    @classmethod
    def _tiers_that_are_set(cls, value: str, info: ValidationInfo) -> str:
        names = [name.strip() for name in value.split(",") if name.strip()]
        given = info.data
        there = {
            "ssd": given.get("ssd_tier_gib"),
            "redis": given.get("redis_url"),
            "s3": given.get("s3_url"),
        }
        for name in names:
            if not there.get(name):
                known = ", ".join(tier for tier, is_set in there.items() if is_set)
                raise ValueError(f"there is no tier {name!r}; besides memory: {known or 'none'}")
        return ",".join(names)

    @field_validator("gate_min_checks")
    @classmethod
    def _within_window(cls, value: int, info: ValidationInfo) -> int:
        if value > (window := info.data.get("gate_window", value)):
            raise ValueError(f"must be at most gate_window, {window}")
        return value

    @property
    def kv_dir(self) -> Path:
        return self.data_dir / "kv"

    @property
    def loras(self) -> dict[str, Path]:
        """Folders of the LoRA adapters by their names."""
        return _named_folders(self.lora)

    @property
    def precomputed_loras(self) -> list[str]:
        """The adapters with which documents are computed as they come in."""
        return _parts(self.lora_precompute)

    @property
    def prompts_dir(self) -> Path:
        return self.kv_dir / ".prompts"  # on the same volume; the SSD tier skips hidden folders

    @property
    def model_name(self) -> str:
        """The model's name in answers: as it was given, or that of its folder or file."""
        if not self.model:
            return "kvstitch-demo"
        path = Path(self.model).expanduser()
        if path.suffix.lower() == ".gguf":
            return path.stem
        return path.resolve().name if path.is_dir() else self.model

    def worker(
        self,
        model_folder: Path,
        address: str,
        *,
        number: int = 0,
        tenants_secret: str = "",
        calibration: Path | None = None,
        shared: bool = False,
    ) -> WorkerSettings:
        """The worker's part of the settings.

        Args:
            model_folder: The model that it is to load.
            address: Where it is to listen.
            number: Which of the workers it is, from 0.
            tenants_secret: Keys the chunks of named tenants, unless tenant_secret or fleet_secret
                is set.
            calibration: The file that `kvstitch tune` wrote for the model; None: there is none.
            shared: It runs by itself, for several gateways.
        """
        alone = self.workers == 1 and not shared
        if self.fleet_secret:
            tenants_secret = fleet_secret.tenants_secret(self.fleet_secret)
        return WorkerSettings(
            model=str(model_folder),
            fleet_secret=self.fleet_secret,
            shared=shared,
            calibration=str(calibration.resolve()) if calibration else "",
            model_name=self.model_name,
            loras={name: str(folder.resolve()) for name, folder in self.loras.items()},
            address=address,
            kv_dir=str(self.kv_dir) if self.ssd_tier_gib else "",
            dtype=self.dtype,
            device=self.device_of(number),
            tensor_parallel=self.tensor_parallel,
            quantize=self.quantize,
            codec=self.codec,
            memory_tier_bytes=self.memory_tier_mib * MIB // self.workers,
            ssd_tier_bytes=int(self.ssd_tier_gib * 1024 * MIB),
            redis_url=self.redis_url,
            redis_ttl_s=self.redis_ttl_s,
            s3_url=self.s3_url,
            s3_endpoint=self.s3_endpoint,
            s3_region=self.s3_region,
            write_tiers=self.write_tiers,
            pool_tokens=self.pool_tokens,
            max_running=self.max_running,
            # The gateway limits requests; the worker must accept all that it admits, at once.
            max_waiting=self.max_running + self.max_waiting,
            planner=self.planner,
            sketches=self.sketches,
            prefix_cache=self.prefix_cache,
            prompts_dir=str(self.prompts_dir),
            # Which worker stored a prompt would decide what a deletion must wait for.
            prompts_bytes=int(self.stored_prompts_gib * 1024 * MIB) if alone else 0,
            draft_tokens=self.draft_tokens,
            gate_sample=self.gate_sample,
            gate_window=self.gate_window,
            gate_min_checks=self.gate_min_checks,
            gate_min_agreement=self.gate_min_agreement,
            gate_max_kl=self.gate_max_kl,
            gate_recovery=self.gate_recovery,
            workers=self.workers,
            number=number,
            threads=self.threads or self._share_of_cores(),
            methods_dir=str(self.methods_dir.resolve()) if self.methods_dir else "",
            otlp_endpoint=self.otlp_endpoint,
            tenant_secret=self.tenant_secret,
            tenants_secret=self.tenant_secret or tenants_secret,
        )

    def device_of(self, number: int) -> str:
        """The device of a worker; workers take those that are named in turns."""
        devices = [name.strip() for name in self.device.split(",")]
        return devices[number % len(devices)]

    def _share_of_cores(self) -> int:
        """Threads of each of several workers; 0, torch's choice, for one that is alone."""
        return 0 if self.workers == 1 else max(1, len(os.sched_getaffinity(0)) // self.workers)


def load(**overrides: Any) -> Settings:
    """Read the settings from the environment.

    Args:
        **overrides: Take precedence if they are not None.

    Raises:
        InvalidSetting: Some values are wrong; the message has one line for each.
    """
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        raise InvalidSetting("\n".join(_explain(fault) for fault in error.errors())) from None


def _parts(value: str) -> list[str]:
    return [part for part in map(str.strip, value.split(",")) if part]


def _named_folders(value: str) -> dict[str, Path]:
    pairs = [part.partition("=") for part in _parts(value)]
    return {name.strip(): Path(folder.strip()).expanduser() for name, _, folder in pairs}


def _explain(fault: Any) -> str:
    name = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    given = "…" if name == "fleet_secret" and fault["input"] else repr(fault["input"])
    return f"{name} ({PREFIX}{name.upper()}) = {given}: {message}"
