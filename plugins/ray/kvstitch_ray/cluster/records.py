"""What goes through Ray: the plan of a worker to an actor, and the state of both from it.

Ray writes an actor's arguments into no log and no process list. A plan may hold secrets; its repr
shows none. Names of actors are `kvstitch-worker-<n>`, n from 1, in the namespace `kvstitch`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from kvstitch.service.cli.serve import PreparedWorker
from kvstitch.service.models import prepare_model
from kvstitch.service.settings import Settings, load

NAMESPACE = "kvstitch"
PREFIX = "kvstitch-worker-"

Phase = Literal[
    "waiting",  # Ray has not started the actor: there is no room, or its machine was lost
    "preparing",  # the model is found on that machine, fetched or converted
    "loading",  # the process runs and is not ready
    "ready",
    "restarting",  # the process ended; another is started after a pause
    "draining",  # it takes nothing new and finishes what runs
    "refused",  # it will never start with this model or these settings
    "ended",
    "failed",  # the actor itself could not be started
]

# Workers that take requests, or will: `cluster up` brings their number to --workers.
COUNTED: tuple[Phase, ...] = ("waiting", "preparing", "loading", "ready", "restarting", "refused")
# The process is there, or another will be at its address. Gateways cut off the streams of a worker
# whose address is taken off their list.
REACHABLE: tuple[Phase, ...] = ("loading", "ready", "restarting", "draining")


@dataclass(frozen=True)
class ActorState:
    """One actor and its worker process.

    Attributes:
        name: The actor's name.
        phase: See Phase.
        node: Name of its machine; empty while there is none.
        address: The worker process's, tcp://IP:PORT; empty while there is none.
        pid: The worker process's id; None while there is none.
        version: Version of kvstitch on that machine.
        restarts: How many times this actor has restarted the process.
        reason: Why it is not ready; empty if it is.
        plan: Digest of the settings that it was started with.
    """

    name: str
    phase: Phase = "waiting"
    node: str = ""
    address: str = ""
    pid: int | None = None
    version: str = ""
    restarts: int = 0
    reason: str = ""
    plan: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> ActorState:
        """Read what an actor sent, perhaps one of another version: unknown fields are left out."""
        known = {field.name for field in dataclasses.fields(cls)}
        taken = {name: value for name, value in fields.items() if name in known}
        if taken.get("phase") not in get_args(Phase):
            taken["phase"] = "loading"
        return cls(**taken)


def name_of(number: int) -> str:
    return f"{PREFIX}{number}"


def number_of(name: str) -> int | None:
    """Return the number in an actor's name; None if it is not a worker's name."""
    digits = name.removeprefix(PREFIX)
    return int(digits) if name.startswith(PREFIX) and digits.isdecimal() else None


def workers_among(names: Iterable[str]) -> list[str]:
    """Return the names of workers, ordered by their numbers."""
    found = [(number, name) for name in names if (number := number_of(name)) is not None]
    return [name for _, name in sorted(found)]


def lowest_free(names: Iterable[str]) -> int:
    """Return the lowest number that no worker has."""
    taken = {number_of(name) for name in names}
    return next(number for number in itertools.count(1) if number not in taken)


# The service's settings that are a worker's: nothing else goes to other machines.
_OF_WORKERS = {
    # what is served
    *("model", "model_cache", "calibration", "lora", "methods_dir", "dtype", "device", "quantize"),
    *("threads", "pool_tokens", "max_running", "max_waiting", "planner"),
    *("sketches", "prefix_cache", "draft_tokens", "prefill_graphs"),
    # where KV is kept
    *("codec", "memory_tier_mib", "ssd_tier_gib", "data_dir", "redis_url", "redis_ttl_s"),
    *("s3_url", "s3_endpoint", "s3_region", "write_tiers"),
    # how it is watched and kept secret
    *("gate_sample", "gate_window", "gate_min_checks", "gate_min_agreement", "gate_max_kl"),
    *("gate_recovery", "log_format", "otlp_endpoint", "tenant_secret", "fleet_secret"),
}
# Left out of the digest, which `status` shows: a hash of a secret lets others try guesses.
_SECRETS = ("fleet_secret", "tenant_secret", "redis_url")


@dataclass(frozen=True)
class WorkerPlan:
    """One worker of the cluster.

    Attributes:
        settings: The service's settings by name, only those that were given; what is left out comes
            from the environment of the actor's machine, or is the default.
        cpus: CPUs that Ray sets aside.
        gpus: GPUs that Ray sets aside.
        resources: Other resources that Ray counts, by name.
        ports: First and last port that a worker may listen on; None: any free one.
    """

    settings: Mapping[str, Any] = field(repr=False)
    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    ports: tuple[int, int] | None = None

    @classmethod
    def of(cls, settings: Settings, **resources: Any) -> WorkerPlan:
        """Return a plan with the worker's part of `settings`, without defaults."""
        wanted = _OF_WORKERS | settings.of_plugins().keys()
        dumped = settings.model_dump(mode="json", include=settings.model_fields_set & wanted)
        for name in ("data_dir", "model_cache", "methods_dir"):
            if dumped.get(name):  # actors have another working directory
                dumped[name] = os.path.abspath(os.path.expanduser(dumped[name]))
        if Path(settings.model).exists() and dumped.get("model"):
            dumped["model"] = os.path.abspath(settings.model)
        return cls(settings=dumped, **resources)

    @property
    def demand(self) -> dict[str, float]:
        """The resources that must be free on one machine, by Ray's names."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        return {name: amount for name, amount in wanted.items() if amount}

    @property
    def digest(self) -> str:
        """A hash of the plan without its secrets."""
        shown = dataclasses.asdict(self)
        shown["settings"] = {k: v for k, v in self.settings.items() if k not in _SECRETS}
        return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:12]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerPlan:
        """Read what `to_json` wrote, perhaps that of a later version."""
        known = {each.name for each in dataclasses.fields(cls)}
        values = {name: value for name, value in json.loads(text).items() if name in known}
        values["ports"] = tuple(values["ports"]) if values.get("ports") else None
        return cls(**values)

    def prepared(self) -> PreparedWorker:
        """Find the model on this machine, and fetch or convert it if need be. Takes long."""
        settings = load(**self.settings)
        if not settings.threads:  # Ray sets OMP_NUM_THREADS, which would be another number
            settings = settings.model_copy(update={"threads": max(1, int(self.cpus))})
        return PreparedWorker.of(settings, prepare_model(settings))
