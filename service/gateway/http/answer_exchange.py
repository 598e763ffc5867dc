"""What all routes that answer have in common: stream or whole, headers, a client that leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from pydantic import BaseModel

from service.gateway.answers.answer_service import AnswerService
from service.gateway.answers.answer_stream import AnswerStream
from service.gateway.answers.call_context import CallContext
from service.gateway.answers.response import server_timing
from service.gateway.http.dependencies import CallContextDep, GatewayDep
from service.gateway.http.sse import EventFraming, EventStream, unless_disconnected
from service.gateway.schemas import GenerateRequest, GenerateResponse

CLIENT_LEFT = 499


@dataclass(frozen=True)
class AnswerExchange:
    """One HTTP request for an answer."""

    request: Request
    answers: AnswerService
    call: CallContext
    ping_s: float

    async def explain(self, asked: GenerateRequest) -> Any:
        """What an answer would take."""
        work = self.answers.explain(asked, self.call)
        result = await unless_disconnected(work, self.request.receive)
        if result is None:
            return Response(status_code=CLIENT_LEFT)
        return _json(result, server_timing(result.stages))

    async def answer(
        self,
        asked: GenerateRequest,
        framing: Callable[[AnswerStream], EventFraming],
        whole: Callable[[AnswerStream, GenerateResponse], BaseModel],
    ) -> Any:
        """A stream in `framing`'s frames, or what `whole` makes of the result."""
        if asked.stream:
            answer = await self.answers.open(asked, self.call)
            headers = {"Server-Timing": server_timing(answer.prepared.stages)}
            return EventStream(answer, framing(answer), ping_s=self.ping_s, headers=headers)

        async def collect() -> Response:
            answer = await self.answers.open(asked, self.call)
            result = await answer.collect()
            timing = server_timing(result.stages, result.timing.total_s)
            return _json(whole(answer, result), timing)

        result = await unless_disconnected(collect(), self.request.receive)
        return Response(status_code=CLIENT_LEFT) if result is None else result


def _json(result: BaseModel, timing: str) -> Response:
    """Written at once: left to the framework it would be validated once more before."""
    body = result.model_dump_json(by_alias=True)
    return Response(body, media_type="application/json", headers={"Server-Timing": timing})


async def _exchange(request: Request, gateway: GatewayDep, call: CallContextDep) -> AnswerExchange:
    return AnswerExchange(request, gateway.answers, call, gateway.settings.stream_ping_s)


AnswerExchangeDep = Annotated[AnswerExchange, Depends(_exchange)]
