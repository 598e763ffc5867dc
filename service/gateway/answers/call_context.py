"""What a request brings besides its body: who sent it, when it arrived, and its deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from service.errors import DeadlineExceeded
from service.gateway.auth.access import Principal

T = TypeVar("T")


@dataclass(frozen=True)
class CallContext:
    """Who asks, and until when.

    Attributes:
        principal: The sender.
        arrived: When the request arrived, by time.perf_counter.
        deadline: When the answer must end, by the same clock; None: the client waits.
        traceparent: The client's span (W3C Trace Context); empty: there is none.
    """

    principal: Principal
    arrived: float
    deadline: float | None = None
    traceparent: str = ""

    @property
    def left_s(self) -> float | None:
        """Seconds until the deadline, never negative."""
        return None if self.deadline is None else max(0.0, self.deadline - time.perf_counter())


async def before_deadline(work: Awaitable[T], call: CallContext) -> T:
    """Await `work` as long as the client waits.

    Raises:
        DeadlineExceeded: The deadline passed.
    """
    try:
        async with asyncio.timeout(call.left_s):
            return await work
    except TimeoutError:
        raise DeadlineExceeded(
            "the deadline passed before the answer began: give more time"
        ) from None
