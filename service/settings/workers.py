"""Worker processes: how many, where, and what each takes on."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from service.errors import InvalidSetting
from service.settings.lists import parts
from service.shared import fleet_secret

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
        le=64,
        description="processes of this machine that share the model: each computes a part of every "
        "layer's heads and holds their weights and KV; 1: the worker alone",
    )
    threads: int = Field(0, ge=0, description="CPU threads of a worker; 0: its share of the cores")
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

    @field_validator("fleet_secret")
    @classmethod
    def _secret_enough(cls, value: str, info: ValidationInfo) -> str:
        try:
            if value:
                fleet_secret.check(value)
            for address in parts(
                info.data.get("worker_addresses", "")
            ):  # of ray://, when the workers' addresses are known
                fleet_secret.require_secret(address.replace("dns://", "tcp://"), value)
        except InvalidSetting as error:
            raise ValueError(error.message) from None
        return value
