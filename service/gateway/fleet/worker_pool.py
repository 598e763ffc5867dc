"""Several workers that are spoken to as one is.

A request goes to the worker that the router chooses. If that worker dies before it has sent a
token, the request moves to another, once; later it ends in an error. One that is about to end gets
no new requests, and what it gives back moves, however often. Purges and the gate's calls go to all
workers. Workers may join and leave at any time.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

from kvstitch.service.errors import Overloaded, WorkerUnavailable
from kvstitch.service.gateway.fleet import all_workers
from kvstitch.service.gateway.fleet.member import Member
from kvstitch.service.gateway.fleet.routing.cost import Work, WorkerTable
from kvstitch.service.gateway.fleet.routing.directory import Directory, PrefixMap
from kvstitch.service.gateway.fleet.routing.router import Policy, Router, work_of
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.gateway.worker_client.client import Event, WorkerClient
from kvstitch.service.gateway.worker_client.connection import RETRY_AFTER_S
from kvstitch.service.messages.replies import (
    Done,
    Failed,
    GateStates,
    Holdings,
    Precomputed,
    Purged,
    Ready,
    Stats,
)
from kvstitch.service.messages.reports import Forecast
from kvstitch.service.messages.requests import (
    ChunkNames,
    Compared,
    Generate,
    Precompute,
    Prefetch,
    Purge,
)

# Tokens that an answer is expected to have before there was one, and the weight of the newest.
USUAL_ANSWER = 64.0
ANSWER_WEIGHT = 0.05
# Reasons for which a request that nothing was streamed of is sent to another worker.
MOVED = (WorkerUnavailable.code, Overloaded.code)
# A request may be what its worker died of: it must not take one after another with it.
MOST_MOVES = 1


class WorkerPool:
    """Takes the calls of a WorkerClient, for several of them; policy and flags are those of
    `Router`. `none_known` is the reason that is given while the pool has no worker; `absent` says
    why a worker that is no member any more may still hold deleted text (None: none does).
    `directory` is what each holds in memory."""

    def __init__(
        self,
        members: Sequence[Member],
        policy: Policy,
        metrics: GatewayMetrics,
        *,
        slower_tiers: bool,
        prefix_cache: bool,
        none_known: str = "no worker is known",
        absent: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._by_number = {member.number: member for member in members}
        self._none_known = none_known
        self._absent = absent
        self._some_ready = asyncio.Event()
        self._table = WorkerTable()
        for member in members:
            member.join(self._table)
        self.directory = Directory(on_gap=metrics.directory_gaps.inc)
        self._prefixes = PrefixMap()
        self._router = Router(
            policy,
            self._table,
            self.directory,
            self._prefixes,
            slower_tiers=slower_tiers,
            prefix_cache=prefix_cache,
        )
        self._metrics = metrics
        self._answer_tokens = USUAL_ANSWER
        self._open: set[str] = set()  # ids of requests that have not ended
        self._at: dict[str, Member] = {}  # where each of them is, unless it is being moved
        self._aborts: dict[str, str] = {}  # reasons that came while it moved

    @property
    def members(self) -> list[Member]:
        """All workers, ready or not."""
        return list(self._by_number.values())

    def join(self, member: Member) -> None:
        """Add a worker; its number must be new."""
        member.join(self._table)
        self._by_number[member.number] = member

    def leave(self, number: int) -> None:
        """Remove a worker; its connection is closed afterwards."""
        self._forget(number)
        self._by_number.pop(number, None)

    # -- what the connections report --------------------------------------------------------------

    def changed(self, number: int, up: bool) -> None:
        """Note that a worker has become ready, or is gone."""
        self._forget(number)
        if up and (member := self._by_number.get(number)) is not None:
            member.became_ready()
            self._some_ready.set()

    def reported(self, number: int, holdings: Holdings) -> None:
        """Note what a worker holds, and how busy it is."""
        if (member := self._by_number.get(number)) is None:
            return
        member.reported(holdings)
        if not self.directory.apply(number, holdings):
            member.client.ask_holdings()

    # -- as one worker -----------------------------------------------------------------------------

    @property
    def ready(self) -> Ready | None:
        """What a worker said that is ready; all serve the same model."""
        return next((m.client.ready for m in self.members if m.client.ready is not None), None)

    @property
    def stats(self) -> Stats | None:
        known = [m.client.stats for m in self._ready_members() if m.client.stats is not None]
        return all_workers.stats(known) if known else None

    @property
    def reason(self) -> str:
        return self.members[0].client.reason if self._by_number else self._none_known

    def require(self) -> Ready:
        if (ready := self.ready) is None:
            raise WorkerUnavailable(self.reason, retry_after_s=RETRY_AFTER_S)
        return ready

    async def wait_ready(self) -> Ready:
        while self.ready is None:
            self._some_ready.clear()
            await self._some_ready.wait()
        return self.require()

    async def submit(self, request: Generate) -> AsyncGenerator[Event, None]:
        tried: set[int] = set()
        moves = 0  # from workers that were not about to end
        self._open.add(request.id)
        try:
            work = self._work(request)
            while True:
                begun = False
                member = self._route(request.id, work, tried)
                async with aclosing(self._attempt(request, member, tried)) as events:
                    async for event in events:
                        if not begun and self._may_move(event, member, moves, tried):
                            if member.draining:  # its successor may be the next to take it
                                tried.discard(member.number)
                            else:
                                moves += 1
                            break
                        begun = True
                        yield event
                    else:
                        return
                self._metrics.moved_requests.inc()
        finally:
            self._open.discard(request.id)
            self._aborts.pop(request.id, None)

    async def explain(self, request: Generate) -> Forecast:
        choice = self._router.choose(self._work(request), self._candidates())
        return await self._by_number[choice.number].client.explain(request)

    def abort(self, request_id: str, reason: str) -> None:
        if request_id in self._open:
            self._aborts[request_id] = reason
        if (member := self._at.get(request_id)) is not None:
            member.client.abort(request_id, reason)

    def prefetch(self, message: Prefetch) -> None:
        if not self._takers():
            return
        names = ChunkNames(message.system, message.prefix_mode, message.tenant, message.lora)
        work = Work(
            names=[names.of(chunk) for chunk in message.documents],
            documents=[len(chunk.ids) for chunk in message.documents],
        )
        choice = self._router.choose(work, self._candidates())
        self.directory.expect(choice.number, work.names)
        self._by_number[choice.number].client.prefetch(message)

    async def precompute(self, message: Precompute) -> AsyncGenerator[Precomputed, None]:
        self.require()
        if not (takers := self._takers()):
            raise WorkerUnavailable("all workers are about to end", retry_after_s=RETRY_AFTER_S)
        spread = all_workers.spread_precompute(message, takers, self._router, self.directory)
        async with aclosing(spread) as replies:
            async for reply in replies:
                yield reply

    async def purge(self, message: Purge) -> Purged:
        """Raises WorkerUnavailable: one may still hold some; one that has ended holds none."""
        loras = ("", *(adapter.name for adapter in self.require().adapters))
        holding = [member for member in self.members if not member.holds_nothing]
        done = await asyncio.gather(*(member.client.purge(message) for member in holding))
        for lora in loras:
            names = ChunkNames(message.system, message.prefix_mode, message.tenant, lora)
            self.directory.deleted(map(names.of, message.documents))
        if (reason := self._absent()) is not None:
            raise WorkerUnavailable(reason, retry_after_s=RETRY_AFTER_S)
        return all_workers.purged(done)

    async def gate(self, *, reset: str | None = None) -> GateStates:
        """Return the states at the worker that trusts a method least; reset all that are up."""
        self.require()
        calls = (member.client.gate(reset=reset) for member in self._ready_members())
        return all_workers.gate_states(await asyncio.gather(*calls))

    def compared(self, message: Compared) -> None:
        for member in self._ready_members():  # the one that has asked knows it
            member.client.compared(message)

    # -- routing ----------------------------------------------------------------------------------

    async def _attempt(
        self, request: Generate, member: Member, tried: set[int]
    ) -> AsyncGenerator[Event, None]:
        """Events of a worker, which is added to `tried`."""
        tried.add(member.number)
        self._at[request.id] = member
        try:
            async with aclosing(member.client.submit(request)) as stream:
                if (reason := self._aborts.get(request.id)) is not None:
                    member.client.abort(request.id, reason)
                async for event in stream:
                    if isinstance(event, Done):
                        self._learn(event)
                    yield event
        except (WorkerUnavailable, Overloaded) as error:
            if not self._takers(tried):
                raise
            yield Failed(request.id, error.code, error.message)
        finally:
            member.ended(request.id)
            del self._at[request.id]

    def _route(self, request_id: str, work: Work, tried: set[int]) -> Member:
        choice = self._router.choose(work, self._candidates(tried))
        member = self._by_number[choice.number]
        self._count(work, choice.number)
        member.began(request_id, choice.prefill_s)
        self._router.sent(work, choice.number)
        return member

    def _work(self, request: Generate) -> Work:
        return work_of(request, answer=self._answer_tokens, repair=self._repair_ratio(request))

    def _repair_ratio(self, request: Generate) -> float:
        """Share of stored tokens that its method computes anew, as far as its parameters tell."""
        method = next((m for m in self.require().fusion if m.name == request.fusion.name), None)
        schema = {} if method is None else method.parameters.get("ratio", {})
        ratio = request.fusion.parameters.get("ratio", schema.get("default", 0.0))
        return ratio if isinstance(ratio, float | int) else float(schema.get("default", 0.0))

    def _candidates(self, tried: Iterable[int] = ()) -> list[int]:
        members = self._takers(tried)
        if not members:
            why = "all workers are about to end" if self.ready is not None else self.reason
            raise WorkerUnavailable(why, retry_after_s=RETRY_AFTER_S)
        return [member.number for member in members]

    def _ready_members(self) -> list[Member]:
        return [m for m in self.members if m.client.ready is not None]

    def _takers(self, tried: Iterable[int] = ()) -> list[Member]:
        left_out = set(tried)
        return [m for m in self.members if m.takes_requests and m.number not in left_out]

    def _may_move(self, event: Event, member: Member, moves: int, tried: set[int]) -> bool:
        """Return whether a request that ends so at a worker can go to another."""
        failed = isinstance(event, Failed) and event.code in MOVED
        return failed and (member.draining or moves < MOST_MOVES) and bool(self._takers(tried))

    def _forget(self, number: int) -> None:
        self.directory.forget(number)
        self._prefixes.forget(number)

    def _count(self, work: Work, number: int) -> None:
        for name in work.names:
            holders = self.directory.holders(name)
            where = "here" if number in holders else "elsewhere" if holders else "nowhere"
            self._metrics.routed_documents.labels(where).inc()

    def _learn(self, done: Done) -> None:
        newest = done.report.completion_tokens
        self._answer_tokens += ANSWER_WEIGHT * (newest - self._answer_tokens)


Worker = WorkerClient | WorkerPool
"""What the rest of the gateway talks to."""
