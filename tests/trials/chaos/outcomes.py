"""What one request may come to: an answer that is right, or an error that says why."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx

from kvstitch.client import server_sent_events
from tests.trials.chaos.asks import ROUTES, Ask
from tests.trials.chaos.errors import Violation
from tests.trials.chaos.life import Life
from tests.trials.chaos.world import DEADLINE_S, World

REFUSALS = {404, 408, 409, 429, 503, 504, 507}
DEATH_S = 3.0  # a connection may break a little before the process is seen to be gone


def send(
    world: World, client: httpx.Client, method: str, path: str, **request: Any
) -> httpx.Response | None:
    """Send one request; None if the gateway was killed meanwhile.

    Raises:
        Violation: It hung, failed without a reason, or its connection broke for none.
    """
    life = world.life
    began = time.monotonic()
    try:
        reply = client.request(method, path, **request)
    except httpx.TransportError as error:
        _allow_broken(world, life, error, f"{method} {path}")
        return None
    world.journal.count("requests")
    if (took := time.monotonic() - began) > DEADLINE_S:
        raise Violation(f"{method} {path} took {took:.0f} s")
    check_status(f"{method} {path}", reply.status_code, reply.text)
    world.journal.count(f"status {reply.status_code}")
    return reply


def check_status(what: str, status: int, body: str) -> None:
    """An error has a code, a message, and one of the statuses that chaos explains.

    Raises:
        Violation: It has not.
    """
    if status < 400:
        return
    try:
        error = json.loads(body)
        error = error.get("error", error)
        explained = bool(error["code"]) and bool(error.get("message") or error.get("detail"))
    except (ValueError, KeyError, AttributeError):
        explained = isinstance(body, str) and '"reason"' in body  # GET /health/ready
    if status not in REFUSALS or not explained:
        raise Violation(f"{what}: {status} {body[:500]}")


def check_answer(world: World, ask: Ask, reply: dict[str, Any]) -> str:
    """Compare with the twin; returns the cache state.

    Raises:
        Violation: An undisturbed service answers something else in this state.
    """
    state, text = ask.read(reply)
    if "-" in state:
        missing = [d for d, bit in zip(ask.doc_ids, state, strict=True) if bit == "-"]
        found = [world.ledger.find("red", doc_id) for doc_id in missing]
        if any(d is None or world.ledger.stayed(d, DEADLINE_S) for d in found):
            raise Violation(f"{ask.name} is answered without {missing}, which were never deleted")
        world.journal.count("answered while a document was deleted")
        return state
    expected = world.twin.expected(ask, state)
    if text not in expected:
        cache = reply.get("cache") or reply["kvstitch"]["cache"]
        raise Violation(f"{ask.name} in state {state}: {text!r}, not {expected!r}; {cache}")
    world.journal.count("answers compared")
    return state


def read_stream(
    world: World, client: httpx.Client, ask: Ask, leave_after: int | None
) -> tuple[dict[str, Any], str] | None:
    """Read a streamed answer to its end, or leave after some lines.

    Returns:
        Its last event as a whole answer, and the text of its pieces; None if there is no end to
        judge: an error event, a refusal, a killed gateway, or that we left.

    Raises:
        Violation: It ended in neither an answer nor an error event.
    """
    life = world.life
    began = time.monotonic()
    try:
        with client.stream("POST", ask.route, json=ask.body(stream=True)) as reply:
            world.journal.count("requests")
            if reply.status_code != 200:
                check_status(ask.route, reply.status_code, reply.read().decode())
                world.journal.count(f"status {reply.status_code}")
                return None
            pieces: list[str] = []
            for number, (_, data) in enumerate(server_sent_events(reply.iter_lines())):
                if leave_after is not None and number >= leave_after:
                    world.journal.count("disconnects")
                    return None
                if time.monotonic() - began > DEADLINE_S:
                    raise Violation(f"a stream of {ask.name} took too long")
                if "error" in data:
                    check_status(ask.route, 503, json.dumps(data))
                    world.journal.count("error events")
                    return None
                end = _last(ask, data, pieces)
                if end is not None:
                    return end, "".join(pieces)
    except httpx.TransportError as error:
        _allow_broken(world, life, error, f"stream {ask.name}")
        return None
    _allow_broken(world, life, EOFError("it ended without a last event"), f"stream {ask.name}")
    return None


def _last(ask: Ask, data: dict[str, Any], pieces: list[str]) -> dict[str, Any] | None:
    """Add the text of an event to `pieces`; the last event comes back as a whole answer."""
    if ask.route == ROUTES[0]:
        if "cache" in data:
            return data
        pieces.append(data.get("text", ""))
        return None
    choice = data["choices"][0]
    pieces.append(choice["delta"].get("content", "") if "delta" in choice else choice["text"])
    if choice["finish_reason"] is None:
        return None
    text = "".join(pieces)
    whole = {"message": {"content": text}} if "delta" in choice else {"text": text}
    return {"choices": [whole], "kvstitch": data["kvstitch"]}


def _allow_broken(world: World, life: Life | None, error: Exception, what: str) -> None:
    """A connection may break only because its gateway was killed or is ending.

    Raises:
        Violation: It was not.
        httpx.ConnectError: Nobody listened, as is right while nobody is ready.
    """
    give_up_at = time.monotonic() + DEATH_S
    while life is not None and not (life.doomed or life.ended or not life.is_ready):
        if time.monotonic() > give_up_at or isinstance(error, httpx.ReadTimeout):
            raise Violation(f"{what}: {type(error).__name__} {error}, and the gateway lives")
        time.sleep(0.05)
    if isinstance(error, httpx.ConnectError):
        raise error  # there was nobody to ask
    world.journal.count("requests")
    world.journal.count("broken by a kill")
