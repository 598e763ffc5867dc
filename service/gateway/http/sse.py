"""Server-sent events: framing, pings, and noticing that the client has disconnected."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvstitch.records.answers import TokenLogprob
from service.errors import KvstitchError, WorkerFault
from service.gateway.answers.answer_service import AnswerGroup, NumberedEvent
from service.gateway.answers.answer_stream import Finished, Sources, TextDelta
from service.gateway.http.problems import cut_off, error_object
from service.gateway.schemas.writing import json_value

logger = logging.getLogger(__name__)

T = TypeVar("T")
PING = b": ping\n\n"


class EventFraming(Protocol):
    """How a route writes events, and the error that ends a stream."""

    def event(self, event: NumberedEvent) -> bytes: ...

    def error(self, error: KvstitchError) -> bytes: ...


def data_line(data: Any) -> str:
    """Return a `data:` line with JSON, which never holds a line break."""
    text = json.dumps(data, ensure_ascii=False)
    for separator, escape in (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029")):
        text = text.replace(separator, escape)
    return f"data: {text}\n\n"


def frame(event: str, data: Any) -> bytes:
    return f"event: {event}\n{data_line(data)}".encode()


class NamedEvents:
    """The framing of /v1/rag/generate: sources, token …, then done or error."""

    def event(self, event: NumberedEvent) -> bytes:
        match event.event:
            case Sources(citations, retrieval):
                cited = [json_value(c, exclude_none=True) for c in citations]
                searched = None if retrieval is None else json_value(retrieval)
                sources = {"citations": cited, "found": bool(cited), "retrieval": searched}
                return frame("sources", sources)
            case TextDelta(text, logprobs):
                return frame("token", {"text": text, **_logprobs(logprobs)})
            case Finished(response):
                return frame("done", json_value(response))

    def error(self, error: KvstitchError) -> bytes:
        return frame("error", {"error": error_object(error)})


def _logprobs(logprobs: list[TokenLogprob] | None) -> dict[str, Any]:
    return {} if logprobs is None else {"logprobs": [json_value(one) for one in logprobs]}


class EventStream(Response):
    """Streams answers. A client that disconnects ends them at once, even between two tokens."""

    media_type = "text/event-stream"

    def __init__(
        self,
        answers: AnswerGroup,
        framing: EventFraming,
        *,
        ping_s: float,
        headers: Mapping[str, str],
    ) -> None:
        self.status_code = 200
        self.background = None
        self._answers = answers
        self._framing = framing
        self._ping_s = ping_s
        self._started = False
        # Proxies must neither buffer the stream nor cache it.
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers})
        self.raw_headers = [(k, v) for k, v in self.raw_headers if k != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        tasks = {sending, asyncio.create_task(_disconnected(receive))}
        server_ends = False
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not self._started:
                raise
            server_ends = True
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._answers.aclose()
        if server_ends:
            error = self._framing.error(cut_off())
            await send({"type": "http.response.body", "body": error, "more_body": False})
        if not sending.cancelled() and (failure := sending.exception()) is not None:
            raise failure

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        self._started = True
        last_write = asyncio.get_running_loop().time()

        async def write(data: bytes, more: bool = True) -> None:
            nonlocal last_write
            last_write = asyncio.get_running_loop().time()
            await send({"type": "http.response.body", "body": data, "more_body": more})

        async def ping() -> None:
            while True:
                await asyncio.sleep(self._ping_s / 4)
                if asyncio.get_running_loop().time() - last_write >= self._ping_s:
                    await write(PING)

        pinging = asyncio.create_task(ping())
        try:
            async for event in self._answers.events():
                await write(self._framing.event(event))
        except KvstitchError as error:
            await write(self._framing.error(error))
        except Exception:
            logger.exception("an answer failed")
            fault = WorkerFault("something went wrong here; the log says what")
            await write(self._framing.error(fault))
        finally:
            pinging.cancel()
        await write(b"", more=False)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """Await `work`; if the client disconnects first, cancel it and return None."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
