"""One worker of a pool: its connection, what it reported, and what it has been sent."""

from __future__ import annotations

from collections.abc import Sequence

from service.gateway.fleet.routing.worker_table import Backlog, WorkerTable
from service.gateway.worker_client.client import WorkerClient
from service.gateway.worker_client.supervisor import Supervisor
from service.messages.replies import Holdings, WorkerLoad
from service.messages.requests import ChunkTokens


class Member:
    """What the pool knows of a worker; it must `join` the pool's table first.

    Attributes:
        number: from 0; one that comes back has another.
        client: its connection.
        load: what it reported last.
        backlog: seconds of work that it has.
        requests: ids of the requests that it has.
        precompute_s: seconds of chunks that it computes ahead of requests.
    """

    _table: WorkerTable

    def __init__(
        self, number: int, client: WorkerClient, supervisor: Supervisor | None = None
    ) -> None:
        """Without a supervisor it runs by itself: whether its process ended cannot be seen."""
        self.number = number
        self.client = client
        self.load = WorkerLoad()
        self.backlog = Backlog()
        self.requests: set[str] = set()
        self.precompute_s = 0.0
        self._supervisor = supervisor
        self._served_by: int | None = None  # the process that was ready last

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
        if self._supervisor is None:
            return self.client.ready is None and self.client.gone
        process = self._supervisor.pid
        return self.client.ready is None and (process is None or process != self._served_by)

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
        self._served_by = None if self._supervisor is None else self._supervisor.pid
        self.backlog.reset()
        self._table.set_backlog(self.number, self.backlog)
        self.client.ask_holdings()

    def reported(self, holdings: Holdings) -> None:
        """Note how busy it says it is."""
        self.load = holdings.load
        self.backlog.reported(holdings.load.backlog_s, holdings.received)
        self._table.set_load(self.number, holdings.load)
        self._table.set_backlog(self.number, self.backlog)
