"""Forms that answers must have: made into grammars, and what a grammar cannot hold checked later.

    form ── remembered? ── quick lane ── done in time ──────────────── grammar
                └── refused     └── slow lane ── done, or refused and remembered

All of it is done in processes with limits. What takes long waits only for its like. In a lane the
tenant with the fewest under way is next.
"""

import asyncio
import hashlib
import json
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import TypeVar

from kvstitch.records.answers import Answer
from kvstitch.service.errors import InvalidRequest, Overloaded, QuotaExceeded
from kvstitch.service.gateway.answers.validation import AnswerPlan
from kvstitch.service.gateway.schemas.generate import MAX_GRAMMAR_CHARS, Guided
from kvstitch.service.grammars.forms import Form, WrittenForm
from kvstitch.service.grammars.limits import MAX_QUICK, MAX_SLOW, MAX_SLOW_WAITING
from kvstitch.service.grammars.processes import GrammarProcesses, TakesTooMuch, TooBusy

T = TypeVar("T")
RETRY_S = 5.0


class FormLane:
    """For one event loop. One tenant leaves a place to the others, where there is more than one."""

    def __init__(self, name: str, places: int, most_waiting: int | None = None) -> None:
        self._threads = ThreadPoolExecutor(places, name)
        self._places = places
        self._of_one = max(1, places - 1)
        self._most_waiting = most_waiting
        self._under_way: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # tenants in their turns

    async def run(self, tenant: str, work: Callable[[], T]) -> T:
        """Do a tenant's work on a thread; what it raises is raised here."""
        await self._take_place(tenant)
        try:
            doing: Future[T] = self._threads.submit(work)
        except BaseException:
            self._give_place(tenant)
            raise
        loop = asyncio.get_running_loop()
        # A work whose caller has gone away keeps its place until it ends.
        doing.add_done_callback(
            lambda _: loop.is_closed() or loop.call_soon_threadsafe(self._give_place, tenant)
        )
        return await asyncio.wrap_future(doing)

    def close(self) -> None:
        """Wait for what is under way, and leave out the rest."""
        self._threads.shutdown(cancel_futures=True)

    async def _take_place(self, tenant: str) -> None:
        if self._may_begin(tenant) and tenant not in self._waiting:
            self._under_way[tenant] += 1
            return
        queue = self._waiting.setdefault(tenant, deque())
        if self._most_waiting is not None and len(queue) >= self._most_waiting:
            raise QuotaExceeded(
                f"{len(queue)} grammars that take long to compile wait already: send simpler ones, "
                "or fewer at a time",
                retry_after_s=RETRY_S,
            )
        place = asyncio.get_running_loop().create_future()
        queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._give_place(tenant)
            elif place in queue:
                queue.remove(place)
                if not queue:
                    self._waiting.pop(tenant, None)
            raise

    def _may_begin(self, tenant: str) -> bool:
        return self._under_way.total() < self._places and self._under_way[tenant] < self._of_one

    def _give_place(self, tenant: str) -> None:
        self._under_way[tenant] -= 1
        if not self._under_way[tenant]:
            del self._under_way[tenant]
        while able := [each for each in self._waiting if self._may_begin(each)]:
            following = min(able, key=lambda each: self._under_way[each])
            queue = self._waiting.pop(following)
            place = queue.popleft()
            if queue:
                self._waiting[following] = queue  # behind the others
            if not place.cancelled():
                self._under_way[following] += 1
                place.set_result(None)


REMEMBERED_FORMS, REMEMBERED_CHARS = 256, 4_000_000
REMEMBERED_REFUSALS, REFUSED_FOR_S = 4096, 600.0
"""So long, because a process may also have been ended by others."""


class AnswerForms:
    """The forms of one gateway's answers; `processes` are closed with this."""

    def __init__(self, processes: GrammarProcesses) -> None:
        self._processes = processes
        self._quick = FormLane("form", MAX_QUICK)
        self._slow = FormLane("slow-form", MAX_SLOW, MAX_SLOW_WAITING)
        self._remembered: OrderedDict[bytes, WrittenForm] = OrderedDict()
        self._chars = 0  # of all remembered grammars
        self._refused: OrderedDict[bytes, tuple[str, float]] = OrderedDict()  # why, and until when

    async def written(self, guided: Guided | None, tenant: str) -> WrittenForm | None:
        """Return the grammar of what an answer must be, and what it cannot hold; None for None.
        Raises InvalidRequest: it is not valid, cannot be held, or takes too much time or memory;
        QuotaExceeded: too many that take long are the tenant's; Overloaded: the machine is too busy
        to compile it."""
        if guided is None:
            return None
        form = form_of(guided)
        text = json.dumps(asdict(form))
        if form.kind == "json_schema" and len(text) > MAX_GRAMMAR_CHARS:
            raise InvalidRequest(
                f"guided.json_schema has {len(text)} characters, the limit is {MAX_GRAMMAR_CHARS}: "
                "send a shorter one",
                field="guided.json_schema",
            )
        key = hashlib.sha256(text.encode()).digest()
        if (known := self._remembered.get(key)) is not None:
            self._remembered.move_to_end(key)
            return known
        why, until = self._refused.get(key, ("", 0.0))
        if until < time.monotonic():
            try:
                made = await self._write(form, tenant)
            except ValueError as error:
                why = str(error)
                self._remember_refusal(key, why)
            else:
                self._remember(key, made)
                return made
        field = f"guided.{form.kind}"
        raise InvalidRequest(f"{field} is not valid or not supported: {why}", field=field)

    async def _write(self, form: Form, tenant: str) -> WrittenForm:
        write = self._processes.write
        try:
            with suppress(TakesTooMuch):
                return await self._quick.run(tenant, lambda: write(form, quickly=True))
            return await self._slow.run(tenant, lambda: write(form))
        except TooBusy as error:
            raise Overloaded(str(error), retry_after_s=RETRY_S) from None

    def _remember(self, key: bytes, form: WrittenForm) -> None:
        if key not in self._remembered:  # else asked for twice at the same time
            self._chars += len(form.grammar)
            self._remembered[key] = form
        while len(self._remembered) > REMEMBERED_FORMS or self._chars > REMEMBERED_CHARS:
            self._chars -= len(self._remembered.popitem(last=False)[1].grammar)

    def _remember_refusal(self, key: bytes, why: str) -> None:
        self._refused[key] = why, time.monotonic() + REFUSED_FOR_S
        self._refused.move_to_end(key)
        while len(self._refused) > REMEMBERED_REFUSALS:
            self._refused.popitem(last=False)

    async def check(self, plan: AnswerPlan, result: Answer) -> None:
        """Warn of what an answer was not held to of its schema, and say whether it matches."""
        guided, form = plan.request.guided, plan.form
        if guided is None or form is None or not form.unheld:
            return
        what, schema = "; ".join(form.unheld), guided.json_schema
        if schema is None or result.finish_reason != "stop":
            result.warnings.append(f"the answer was not held to {what}")
            return
        fault = await self._quick.run(
            plan.scope.tenant, lambda: self._processes.fault(schema, result.text)
        )
        said = "matches the schema" if fault is None else f"does not match the schema: {fault}"
        result.warnings.append(f"the answer was not held to {what}; it was checked, and {said}")

    def close(self) -> None:
        """End all processes and threads."""
        self._quick.close()
        self._slow.close()
        self._processes.close()


def form_of(guided: Guided) -> Form:
    """Return the form that a request's `guided` asks for."""
    return Form(
        guided.kind,
        getattr(guided, guided.kind),
        strict=guided.strict,
        schemas=guided.schemas,
        strict_schemas=guided.strict_schemas,
    )
