"""What a request brings beside its body: whose it is and until when. Knows no use case."""

from __future__ import annotations

import time
from dataclasses import dataclass

from service.gateway.auth.access import Principal


@dataclass(frozen=True)
class CallContext:
    """`arrived` and `deadline` are times by time.perf_counter; None: the client waits.
    `traceparent`: the client's span, empty if it has none."""

    principal: Principal
    arrived: float
    deadline: float | None = None
    traceparent: str = ""

    @property
    def left_s(self) -> float | None:
        """Seconds until the deadline, never negative."""
        return None if self.deadline is None else max(0.0, self.deadline - time.perf_counter())
