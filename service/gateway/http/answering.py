"""Responses with answers, whole or as server-sent events, and clients that disconnect."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any, Protocol

from fastapi import Request, Response
from pydantic import TypeAdapter
from starlette.types import Receive, Scope, Send

from kvstitch.records.answers import Answer
from kvstitch.service.errors import KvstitchError, WorkerFault
from kvstitch.service.gateway.admission import CallContext
from kvstitch.service.gateway.answers.answer_service import AnswerGroup, NumberedEvent
from kvstitch.service.gateway.answers.answer_stream import Finished, Sources, TextDelta
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.http.dependencies import note
from kvstitch.service.gateway.http.problems import cut_off, error_object
from kvstitch.service.gateway.prompts.conversation import question_of
from kvstitch.service.gateway.schemas.generate import GenerateRequest

logger = logging.getLogger(__name__)

PING = b": ping\n\n"
CLIENT_DISCONNECTED = 499  # as nginx logs it; nobody is left to read the response
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def json_value(response: Any, **options: Any) -> Any:
    """Return a record or a model as values of JSON; options are pydantic's, as exclude_none."""
    return _adapter(type(response)).dump_python(response, mode="json", **options)


def json_response(
    result: Any, stages: Mapping[str, float], total_s: float | None = None
) -> Response:
    """Serialise a result here: FastAPI would validate the model once more before it does."""
    body = _adapter(type(result)).dump_json(result, by_alias=True)
    headers = {"Server-Timing": _server_timing(stages, total_s)}
    return Response(body, media_type="application/json", headers=headers)


def _server_timing(stages: Mapping[str, float], total_s: float | None = None) -> str:
    """Return the Server-Timing header: milliseconds per stage; browsers show them."""
    times = {**stages, **({} if total_s is None else {"total": total_s})}
    return ", ".join(f"{name};dur={1000 * seconds:.3f}" for name, seconds in times.items())


async def answer(
    request: Request,
    gateway: Gateway,
    call: CallContext,
    bodies: Sequence[GenerateRequest],
    writer: Callable[[AnswerGroup], "AnswerWriter"],
) -> Response:
    """Respond with an answer, or with several at once, as a stream or whole."""
    asked = dict.fromkeys(question_of(body.turns) for body in bodies)
    note(request, questions=list(asked), collection=bodies[0].collection or "default")
    if bodies[0].stream:
        group = await gateway.answers.open(bodies, call)
        return EventStream(
            group,
            writer(group),
            ping_s=gateway.settings.stream_ping_s,
            headers={"Server-Timing": _server_timing(group.answers[0].plan.stages)},
        )

    async def collect() -> Response:
        group = await gateway.answers.open(bodies, call)
        results = await group.collect()
        total_s = max(result.timing.total_s for result in results)
        return json_response(writer(group).whole(results), results[0].stages, total_s)

    return await respond_unless_disconnected(collect(), request, lambda response: response)


async def respond_unless_disconnected(
    work: Coroutine[Any, Any, Any],
    request: Request,
    respond: Callable[[Any], Response] = lambda result: json_response(result, result.stages),
) -> Response:
    """Return the response for what `work` gives; a client that disconnects cancels it."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return respond(await task) if task.done() else Response(status_code=CLIENT_DISCONNECTED)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class AnswerWriter(Protocol):
    """How a route writes answers: whole, or as events and the error that ends a stream."""

    def whole(self, results: Sequence[Answer]) -> Any: ...

    def event(self, event: NumberedEvent) -> bytes: ...

    def error(self, error: KvstitchError) -> bytes: ...


def data_line(data: Any, event: str = "") -> str:
    """Return a `data:` line with JSON, which never holds a line break, under its event's name."""
    text = json.dumps(data, ensure_ascii=False)
    for separator, escape in (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029")):
        text = text.replace(separator, escape)
    return f"event: {event}\ndata: {text}\n\n" if event else f"data: {text}\n\n"


class NamedEvents:
    """Answers of /v1/rag/generate; as events: sources, token …, then done or error."""

    def whole(self, results: Sequence[Answer]) -> Answer:
        return results[0]

    def event(self, event: NumberedEvent) -> bytes:
        match event.event:
            case Sources(citations, retrieval):
                cited = [json_value(c, exclude_none=True) for c in citations]
                searched = None if retrieval is None else asdict(retrieval)
                sources = {"citations": cited, "found": bool(cited), "retrieval": searched}
                return data_line(sources, "sources").encode()
            case TextDelta(text, logprobs):
                likely = None if logprobs is None else [json_value(one) for one in logprobs]
                more = {} if likely is None else {"logprobs": likely}
                return data_line({"text": text, **more}, "token").encode()
            case Finished(response):
                return data_line(json_value(response), "done").encode()

    def error(self, error: KvstitchError) -> bytes:
        return data_line({"error": error_object(error)}, "error").encode()


class EventStream(Response):
    """Streams answers. A client that disconnects ends them at once, even between two tokens."""

    media_type = "text/event-stream"

    def __init__(
        self,
        answers: AnswerGroup,
        writer: AnswerWriter,
        *,
        ping_s: float,
        headers: Mapping[str, str],
    ) -> None:
        self.status_code = 200
        self.background = None
        self._answers = answers
        self._writer = writer
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
            error = self._writer.error(cut_off())
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
                await write(self._writer.event(event))
        except KvstitchError as error:
            await write(self._writer.error(error))
        except Exception:
            logger.exception("an answer failed")
            fault = WorkerFault("something went wrong here; the log says what")
            await write(self._writer.error(fault))
        finally:
            pinging.cancel()
        await write(b"", more=False)
