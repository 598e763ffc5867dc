"""Who may use the service, what one call may hold, and the worker processes."""

import re
from typing import Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.settings.fields import parts
from kvstitch.service.shared import fleet_secret
from kvstitch.service.shared.logs import LogFormat
from kvstitch.service.shared.worker_settings import MIB

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+", re.IGNORECASE)


class AccessSettings(BaseModel):
    """Where the service listens, who may use it, and how much."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0: any free one")
    allow_anonymous: bool = Field(
        False, description="serve without API keys, also on addresses that others can reach"
    )
    public_url: str = Field(
        "",
        pattern=r"^(https?://[^\s?#\"\\]+)?$",
        description="where clients reach the service, as https://rag.example.com, told to those "
        "that look for the issuer of tokens; empty: as each request names it",
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
    tenant_secret: str = Field(
        "", pattern=r"^([0-9a-fA-F]{2})*$", description="hex; keys chunks", repr=False
    )
    tenant_max_documents: int | None = Field(None, ge=0)
    tenant_max_bytes: int | None = Field(None, ge=0, description="text stored, UTF-8")
    tenant_requests_per_minute: int | None = Field(None, ge=1)
    tenant_tokens_per_minute: int | None = Field(None, ge=1, description="of prompt and answer")
    max_in_flight_per_key: int = Field(
        0, ge=0, description="answers of one API key at a time; 0: half of all that may be"
    )
    max_jobs_per_key: int = Field(1000, ge=1, description="of one API key that are not done")
    max_sessions_per_key: int = Field(256, ge=1, description="of MCP, of one API key")

    @field_validator("cors_origins")
    @classmethod
    def _exact_origins(cls, value: str) -> str:
        for origin in parts(value):
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is no origin: write scheme://host or scheme://host:port, "
                    "without a path, as browsers send it"
                )
        return value


class LimitSettings(BaseModel):
    """Limits of one call."""

    max_top_k: int = Field(64, ge=1)
    max_question_chars: int = Field(65_536, ge=1)
    max_texts: int = Field(2048, ge=1, description="in one call of /v1/embeddings or /v1/rerank")
    max_texts_chars: int = Field(1_048_576, ge=1, description="of all texts of such a call")
    rerank_timeout_s: float = Field(
        30.0, gt=0, description="for /v1/rerank; answers and searches have rerank_deadline_s"
    )
    strict_fields: bool = Field(
        False, description="OpenAI's routes refuse fields that nobody knows; else they warn"
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
    max_documents: int = Field(10_000, ge=1, description="documents in one ingest call")
    max_document_bytes: int = Field(32 * MIB, ge=1024, description="one document that is text")
    max_pdf_bytes: int = Field(64 * MIB, ge=1024, description="one PDF, Office or EPUB file")
    max_file_pages: int = Field(
        2000, ge=1, description="pages, slides, sheets or chapters of one file"
    )
    max_file_chars: int = Field(10_000_000, ge=1, description="text of one file that is parsed")
    file_cpu_s: int = Field(60, ge=1, description="CPU that reading one file may take")
    file_memory_mib: int = Field(1024, ge=128, description="memory that reading one file may take")
    ocr_pages: int = Field(
        20, ge=0, description="pages of one file that are read by OCR, with kvstitch-ocr; 0: none"
    )
    max_tokens_limit: int = Field(65_536, ge=1)


WORKER_SCHEMES = ("tcp", "dns", "ray", "ipc")


class ProcessSettings(BaseModel):
    """Worker processes: how many, where, and what each takes on."""

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
    worker_lease_s: float = Field(
        600.0,
        ge=5,
        description="a worker that runs by itself and hears nothing of us for so long drops what "
        "only it holds, because it may have missed deletions",
    )
    fleet_secret: str = Field(
        "",
        validate_default=True,
        repr=False,
        description="what gateways and workers prove to each other over TCP; 32 characters or "
        "more, the same for all",
    )
    routing: Literal["cost", "round_robin", "least_load", "longest_prefix"] = Field(
        "cost",
        description="how a worker is chosen where there are several; cost: by what each holds, "
        "and how long it would take",
    )
    device: str = Field(
        "auto",
        description="auto, cpu, cuda or cuda:N; several by commas: one worker each, in turns",
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        description="only 1; several GPUs: vLLM",
    )
    threads: int = Field(0, ge=0, description="CPU threads of a worker; 0: its share of the cores")
    pool_tokens: int = Field(0, ge=0, description="KV pool of running prompts; 0: derived")
    max_running: int = Field(32, ge=1, description="sequences decoded together")
    max_waiting: int = Field(256, ge=0, description="requests that may wait for a place")
    max_waiting_tokens: int = Field(
        1_048_576, ge=1, description="prompt tokens that may be before their first answer token"
    )
    planner: bool = Field(
        True,
        description="compute documents that would take longer to load than to compute, and short "
        "prompts in full, where no method is named and that is not slower",
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
    log_format: LogFormat = Field(
        "text", description="of what gateway and workers write to stderr; json: an object a line"
    )
    drain_timeout_s: float = Field(30.0, ge=0, description="open streams may finish this long")
    stream_ping_s: float = Field(15.0, gt=0, description="silence before a stream is pinged")

    @field_validator("worker_addresses")
    @classmethod
    def _reachable(cls, value: str, info: ValidationInfo) -> str:
        named = parts(value)
        for part in named:
            scheme, _, rest = part.partition("://")
            port = rest.rpartition(":")[2]
            if scheme not in WORKER_SCHEMES:
                raise ValueError(
                    f"{part!r} must be {', '.join(f'{name}://' for name in WORKER_SCHEMES)}"
                )
            if scheme in ("tcp", "dns") and not (port.isdigit() and 0 < int(port) < 65536):
                raise ValueError(f"{part!r} has no port: write {scheme}://host:5700")
            if scheme in ("dns", "ray") and len(named) > 1:
                raise ValueError(f"{part!r} must stand alone: it names all workers")
        if value and info.data.get("workers", 1) > 1:
            raise ValueError("workers (KVSTITCH_WORKERS) would start others: set one of both")
        return ",".join(named)

    @field_validator("tensor_parallel")
    @classmethod
    def _on_one_device(cls, value: int) -> int:
        if value > 1:
            raise ValueError(
                "several GPUs: vLLM (--engine vllm, plugins/vllm/README.md), or a worker for "
                "each (--workers 2 --device cuda:0,cuda:1)"
            )
        return value

    @field_validator("fleet_secret")
    @classmethod
    def _secret_enough(cls, value: str, info: ValidationInfo) -> str:
        try:
            if value:
                fleet_secret.check(value)
            # Of ray://, when the workers' addresses are known.
            for address in parts(info.data.get("worker_addresses", "")):
                fleet_secret.require_secret(address.replace("dns://", "tcp://"), value)
        except InvalidSetting as error:
            raise ValueError(error.message) from None
        return value
