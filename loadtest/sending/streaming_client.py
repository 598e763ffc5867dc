"""Sends one request and reads its stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import httpx

from loadtest.measurement.event_stream import EventParser
from loadtest.measurement.request_record import FAILED, OK, OVERLOADED, REJECTED, RequestRecord
from loadtest.measurement.streamed_answer import StreamedAnswer
from loadtest.traffic.routes import Route

# Limit for connecting, in seconds. Reading has no limit here, because the run has one.
CONNECT_S = 30.0


@dataclass(frozen=True)
class EncodedRequest:
    """A request that is already encoded, so that only sending is left when its time comes.

    Attributes:
        at_s: when to send it, in seconds from the start of the run.
        content: its body.
    """

    at_s: float
    content: bytes


class StreamingClient:
    """Sends prepared requests to one route of one server; use it as a context manager.

    Args:
        base_url: the server.
        route: the route.
        api_key: sent as a bearer token; empty: none.
        clock: gives seconds.
    """

    def __init__(
        self,
        base_url: str,
        route: Route,
        api_key: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._base_url = base_url
        self._route = route
        self._clock = clock
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._http: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        # No limit of connections: a limited pool would hold requests back when the server is slow,
        # and an open loop must not do that.
        self._http = httpx.AsyncClient(
            base_url=self._base_url,
            headers=self._headers,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
            timeout=httpx.Timeout(None, connect=CONNECT_S),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def send(self, request: EncodedRequest, due: float, record: RequestRecord) -> None:
        """Send a request and fill its record while the answer arrives.

        Faults of the server never raise; they go into the record. When cancelled, it disconnects.

        Args:
            request: the request.
            due: when it was meant to be sent, on this client's clock.
            record: is filled.
        """
        assert self._http is not None, "use it as a context manager"
        answer = StreamedAnswer()
        try:
            async with self._http.stream(
                "POST", self._route.path, content=request.content
            ) as reply:
                if reply.status_code != 200:
                    text = (await reply.aread()).decode(errors="replace")
                    record.outcome = {429: REJECTED, 503: OVERLOADED}.get(reply.status_code, FAILED)
                    record.error = f"HTTP {reply.status_code}: {text[:300]}"
                    return
                parser = EventParser()
                async for received in reply.aiter_raw():
                    now = self._clock()
                    for event in parser.feed(received):
                        self._route.read(event, answer, now)
                        _note(record, answer, due)
            if answer.ended_at is not None and answer.error is None:
                record.outcome = OK
            else:
                record.outcome = FAILED
                record.error = answer.error or "the stream broke off before the answer's end"
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            record.outcome = FAILED
            record.error = f"{type(error).__name__}: {error}"


def _note(record: RequestRecord, answer: StreamedAnswer, due: float) -> None:
    """Copy what is known so far into the record."""
    if record.ttft_s is None and answer.first_at is not None:
        record.ttft_s = answer.first_at - due
    if answer.ended_at is None:
        return
    record.e2e_s = answer.ended_at - due
    record.tpot_s = answer.tpot_s
    record.itl_s = answer.itl_s
    record.prompt_tokens = answer.prompt_tokens
    record.completion_tokens = answer.completion_tokens
    record.sources = answer.sources
