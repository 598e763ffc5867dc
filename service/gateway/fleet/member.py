"""One worker: its connection, what it reported, and what it has been sent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from kvstitch.service.gateway.fleet.routing.cost import Backlog, WorkerTable
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.gateway.worker_client.client import WorkerClient
from kvstitch.service.gateway.worker_client.supervisor import Supervisor
from kvstitch.service.messages.replies import Holdings, WorkerLoad
from kvstitch.service.messages.requests import ChunkTokens
from kvstitch.service.shared.metrics import WORKER_STATES


@dataclass(frozen=True)
class WorkerState:
    """One worker process. Fields are None while they are not known."""

    pid: int | None  # where the gateway started it
    reason: str | None  # why it is not ready; None if it is
    pool_free: float | None  # share of its KV pool
    running: int | None  # sequences that it computes
    waiting: int | None  # sequences that wait for their start
    address: str | None = None  # where it runs by itself; None: the gateway started it
    draining: bool = False  # whether it is about to end, and gets no new requests

    @property
    def name(self) -> str:
        """One of `kvstitch.service.shared.metrics.WORKER_STATES`."""
        return "draining" if self.draining else "ready" if self.reason is None else "not_ready"


def count_by_state(metrics: GatewayMetrics, states: Callable[[], Sequence[WorkerState]]) -> None:
    """Have the metrics count the workers of each state, at every scrape."""

    def count(name: str) -> float:
        return sum(state.name == name for state in states())

    for name in WORKER_STATES:
        metrics.workers.labels(name).set_function(partial(count, name))


@dataclass(eq=False)
class Member:
    """What the gateway knows of a worker; in a pool it must `join` the pool's table first.

    Attributes:
        number: from 0; one that comes back has another.
        client: its connection.
        supervisor: of its process; None: it runs by itself, and whether it ended cannot be seen.
        address: where it runs by itself; None: the gateway started it.
        load: what it reported last.
        backlog: seconds of work that it has.
        requests: ids of the requests that it has.
        precompute_s: seconds of chunks that it computes ahead of requests.
    """

    number: int
    client: WorkerClient
    supervisor: Supervisor | None = None
    address: str | None = None
    load: WorkerLoad = field(default_factory=WorkerLoad)
    backlog: Backlog = field(default_factory=Backlog)
    requests: set[str] = field(default_factory=set)
    precompute_s: float = 0.0
    _served_by: int | None = None  # the process that was ready last
    _table: WorkerTable = field(init=False, repr=False)  # from when it joins

    @property
    def takes_requests(self) -> bool:
        """Whether it is ready, and not about to end."""
        return self.client.ready is not None and not self.draining

    @property
    def draining(self) -> bool:
        """Whether it takes nothing new, because it is about to end."""
        return self.client.draining

    @property
    def holds_nothing(self) -> bool:
        """Whether its process has ended, or is new: it has nothing that could be deleted."""
        if self.supervisor is None:
            return self.client.ready is None and self.client.gone
        return self.client.ready is None and (self.pid is None or self.pid != self._served_by)

    @property
    def pid(self) -> int | None:
        """Of its process, where the gateway started it."""
        return None if self.supervisor is None else self.supervisor.pid

    def state(self) -> WorkerState:
        """Return what /status says of it."""
        ready = self.client.ready is not None
        stats = self.client.stats if ready else None
        return WorkerState(
            pid=self.pid,
            reason=None if ready else self.client.reason,
            pool_free=None if stats is None else stats.pool_free,
            running=None if stats is None else stats.running,
            waiting=None if stats is None else stats.waiting,
            address=self.address,
            draining=self.draining,
        )

    def compute_s(self, chunks: Sequence[ChunkTokens]) -> float:
        """Return the seconds that it takes to compute chunks."""
        return sum(len(chunk.ids) for chunk in chunks) * self.load.token_s

    def join(self, table: WorkerTable) -> None:
        """Have it write into the table of its pool."""
        self._table = table
        table.add(self.number)

    def began(self, request_id: str, expected_s: float) -> None:
        """Note a request that is sent to it and is expected to take so long."""
        self.requests.add(request_id)
        self.backlog.sent(expected_s)
        self._table.in_flight[self.number] = len(self.requests)
        self._table.set_backlog(self.number, self.backlog)

    def ended(self, request_id: str) -> None:
        """Note that a request has ended, or has left it."""
        self.requests.discard(request_id)
        self._table.in_flight[self.number] = len(self.requests)

    def became_ready(self) -> None:
        """Note that it has connected; what was known of its predecessor does not count."""
        self._served_by = self.pid
        self.backlog.reset()
        self._table.set_backlog(self.number, self.backlog)
        self.client.ask_holdings()

    def reported(self, holdings: Holdings) -> None:
        """Note how busy it says it is."""
        self.load = holdings.load
        self.backlog.reported(holdings.load.backlog_s, holdings.received)
        self._table.set_load(self.number, holdings.load)
        self._table.set_backlog(self.number, self.backlog)
