"""What all routes that answer share: stream or whole, headers, a client that disconnects."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response

from kvstitch.records.answers import Answer
from service.gateway.admission import CallContext
from service.gateway.answers.answer_service import AnswerGroup, AnswerService
from service.gateway.http.dependencies import CallContextDep, gateway_of
from service.gateway.http.request_notes import note
from service.gateway.http.sse import EventFraming, EventStream, unless_disconnected
from service.gateway.prompts.conversation import question_of
from service.gateway.schemas.generate import GenerateRequest
from service.gateway.schemas.writing import json_bytes

T = TypeVar("T")
CLIENT_DISCONNECTED = 499  # as nginx logs it; nobody is left to read the response


@dataclass(frozen=True)
class AnswerExchange:
    """One HTTP request for an answer."""

    request: Request
    answers: AnswerService
    call: CallContext
    ping_s: float

    async def explain(self, body: GenerateRequest) -> Any:
        """Respond with what an answer would take."""
        self._note([body])
        work = self.answers.explain(body, self.call)
        return await respond_unless_disconnected(
            work, self.request, lambda result: json_response(result, server_timing(result.stages))
        )

    async def answer(
        self,
        bodies: Sequence[GenerateRequest],
        framing: Callable[[AnswerGroup], EventFraming],
        whole: Callable[[AnswerGroup, list[Answer]], Any],
    ) -> Any:
        """Respond with an answer, or with several at once, as a stream or whole."""
        self._note(bodies)
        if bodies[0].stream:
            group = await self.answers.open(bodies, self.call)
            headers = {"Server-Timing": server_timing(group.answers[0].plan.stages)}
            return EventStream(group, framing(group), ping_s=self.ping_s, headers=headers)

        async def collect() -> Response:
            group = await self.answers.open(bodies, self.call)
            results = await group.collect()
            total_s = max(result.timing.total_s for result in results)
            timing = server_timing(results[0].stages, total_s)
            return json_response(whole(group, results), timing)

        return await respond_unless_disconnected(collect(), self.request, lambda done: done)

    def _note(self, bodies: Sequence[GenerateRequest]) -> None:
        asked = [question_of(body.turns) for body in bodies]
        collection = bodies[0].collection or "default"
        note(self.request, questions=list(dict.fromkeys(asked)), collection=collection)


def server_timing(stages: Mapping[str, float], total_s: float | None = None) -> str:
    """Return the Server-Timing header: milliseconds per stage; browsers show them."""
    times = {**stages, **({} if total_s is None else {"total": total_s})}
    return ", ".join(f"{name};dur={1000 * seconds:.3f}" for name, seconds in times.items())


async def respond_unless_disconnected(
    work: Coroutine[Any, Any, T], request: Request, respond: Callable[[T], Response]
) -> Response:
    """Return the response for what `work` gives; a client that disconnects cancels it."""
    result = await unless_disconnected(work, request.receive)
    return Response(status_code=CLIENT_DISCONNECTED) if result is None else respond(result)


def json_response(result: Any, timing: str) -> Response:
    """Serialise a result here: FastAPI would validate the model once more before it does."""
    body = json_bytes(result, by_alias=True)
    return Response(body, media_type="application/json", headers={"Server-Timing": timing})


async def _exchange(request: Request, call: CallContextDep) -> AnswerExchange:
    gateway = gateway_of(request)
    return AnswerExchange(request, gateway.answers, call, gateway.settings.stream_ping_s)


AnswerExchangeDep = Annotated[AnswerExchange, Depends(_exchange)]
