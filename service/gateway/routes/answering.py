"""What all routes that answer have in common: stream or whole, headers, a client that leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from pydantic import BaseModel

from service.gateway.answer import Answerer
from service.gateway.call import Call
from service.gateway.dependencies import AnswererDep, CallDep, PingSeconds
from service.gateway.results import server_timing
from service.gateway.schemas import GenerateRequest, GenerateResponse
from service.gateway.sse import EventStream, Framing, unless_disconnected
from service.gateway.stream import Answer

CLIENT_LEFT = 499


@dataclass(frozen=True)
class Exchange:
    """One HTTP request for an answer. `response` holds the headers of one that is not streamed."""

    request: Request
    response: Response
    answerer: Answerer
    call: Call
    ping_s: float

    async def explain(self, asked: GenerateRequest) -> Any:
        """What an answer would take."""
        work = self.answerer.explain(asked, self.call)
        result = await unless_disconnected(work, self.request.receive)
        if result is None:
            return Response(status_code=CLIENT_LEFT)
        self.response.headers["Server-Timing"] = server_timing(result.stages)
        return result

    async def answer(
        self,
        asked: GenerateRequest,
        framing: Callable[[Answer], Framing],
        whole: Callable[[Answer, GenerateResponse], BaseModel],
    ) -> Any:
        """A stream in `framing`'s frames, or what `whole` makes of the result."""
        if asked.stream:
            answer = await self.answerer.open(asked, self.call)
            headers = {"Server-Timing": server_timing(answer.prepared.stages)}
            return EventStream(answer, framing(answer), ping_s=self.ping_s, headers=headers)

        async def collect() -> BaseModel:
            answer = await self.answerer.open(asked, self.call)
            result = await answer.collect()
            timing = server_timing(result.stages, result.timing.total_s)
            self.response.headers["Server-Timing"] = timing
            return whole(answer, result)

        result = await unless_disconnected(collect(), self.request.receive)
        return Response(status_code=CLIENT_LEFT) if result is None else result


async def _exchange(
    request: Request, response: Response, answerer: AnswererDep, call: CallDep, ping_s: PingSeconds
) -> Exchange:
    return Exchange(request, response, answerer, call, ping_s)


ExchangeDep = Annotated[Exchange, Depends(_exchange)]
