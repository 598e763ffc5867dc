"""The plan of a worker: settings, resources and ports, made by the command line, read by actors.

It goes to actors as an argument, which Ray writes into no log and no process list. It may hold
secrets; its repr shows none.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.cli.serve import PreparedWorker
from service.models import prepare_model
from service.settings import Settings, load

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
