"""Everything an action can reach: the service, its Redis, its disk, and what is known of them."""

from __future__ import annotations

import random
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.e2e.embedding_server import embedding_settings
from tests.ports import free_port
from tests.redis_server import RedisServer
from tests.trials.chaos.asks import Ask
from tests.trials.chaos.documents import OPERATOR, TENANTS, Ledger
from tests.trials.chaos.errors import Violation
from tests.trials.chaos.journal import Journal, load_json, save_json
from tests.trials.chaos.life import ROLES, Faults, Life
from tests.trials.chaos.twin import FIXED, Twin, make_key
from tests.trials.chaos.volume import Volume

DEADLINE_S = 60.0  # every request ends sooner
STARTS = 5  # attempts after which a service that dies at every start is a violation
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # not used, and dear to make for every client
LIMITS = {"drain_timeout_s": 2, "header_timeout_s": 3, "body_timeout_s": 3, "stream_ping_s": 1}


@dataclass
class World:
    """One run's service and what belongs to it."""

    folder: Path
    model: Path
    volume: Volume
    redis: RedisServer
    faults: Faults
    journal: Journal
    ledger: Ledger
    twin: Twin
    asks: list[Ask]
    api_keys: dict[str, str] = field(default_factory=dict)
    receipts: list[tuple[str, str]] = field(default_factory=list)
    life: Life | None = None
    planned: str = ""  # the named point at which a process was asked to die

    @property
    def data_dir(self) -> Path:
        return self.volume.folder / "data"

    @property
    def kv_dir(self) -> Path:
        return self.data_dir / "kv"

    @property
    def log(self) -> Path:
        return self.folder / "service.log"

    def prepare(self) -> None:
        """Data folder and API keys; what an earlier run left is used again."""
        kept = self.volume.folder / "keys.json"
        self.data_dir.mkdir(exist_ok=True)
        self.api_keys = load_json(kept) or {
            t: make_key(self.data_dir, t) for t in (*TENANTS, OPERATOR)
        }
        save_json(kept, self.api_keys)
        (self.folder / "tmp").mkdir(exist_ok=True)

    def client(self, tenant: str, timeout_s: float = DEADLINE_S) -> httpx.Client:
        """A client of the service that runs now, of a tenant or the operator.

        Raises:
            httpx.ConnectError: None runs.
        """
        if self.life is None:
            raise httpx.ConnectError("no service is running")
        headers = {"Authorization": f"Bearer {self.api_keys[tenant]}"}
        return httpx.Client(base_url=self.life.url, headers=headers, timeout=timeout_s, verify=TLS)

    def launch(self, chance: random.Random) -> Life:
        """Start the service with other tiers and another planner, without waiting."""
        settings: dict[str, object] = {
            **FIXED,
            **LIMITS,
            **embedding_settings(),
            "threads": 1,
            "model": self.model,
            "data_dir": self.data_dir,
            "redis_url": self.redis.url,
            "memory_tier_mib": chance.choice((0, 8, 64)),
            "ssd_tier_gib": chance.choice((0.01, 1)),
            "planner": chance.random() < 0.5,
            "prefix_cache": chance.random() < 0.5,
        }
        self.journal.count("starts")
        self.life = Life(settings, free_port(), self.faults.folder, self.log, self.folder / "tmp")
        return self.life

    def ensure_running(self, chance: random.Random) -> Life:
        """A service that serves or is about to."""
        if self.life is None or self.life.ended or self.life.doomed:
            return self.launch(chance)
        return self.life

    def ensure_ready(self, chance: random.Random) -> Life:
        """A service that serves, started anew where it is gone.

        Raises:
            Violation: It ended at its start though nobody killed it, or is never ready.
        """
        for _ in range(STARTS):
            life = self.ensure_running(chance)
            if life.wait_ready():
                return life
            self.note_death(life)
        raise Violation(f"the service died at {STARTS} starts")

    def note_death(self, life: Life) -> None:
        """A process ended: count it if it was asked to, else it is a violation.

        Raises:
            Violation: Nobody killed it.
        """
        if life.doomed or self.planned_death_happened():
            life.doomed = True
            return
        code = life.process.returncode
        raise Violation(f"the service ended by itself, code {code}:\n{life.log()[-3000:]}")

    def planned_death_happened(self) -> bool:
        """Whether the process that was asked to die at a named point has; counted once."""
        role = self.planned.partition(" ")[0]
        if not self.planned or role not in ROLES or self.faults.pending(role):
            return False
        self.journal.count(f"kill at {self.planned}")
        self.journal.step(f"died at {self.planned}")
        self.planned = ""
        return True
