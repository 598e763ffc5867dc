"""Measures how long a request spends in each stage."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class StageClock:
    """Measures the stages of one request.

    Attributes:
        started_at: when the current stage started, by time.monotonic.
        stages: seconds by the name of the stage.
    """

    started_at: float
    stages: dict[str, float] = field(default_factory=dict)
    _blocked_since: float | None = None

    def close(self, name: str) -> None:
        """Ends the current stage; the time since the last `close` is added to stage `name`."""
        now = time.monotonic()
        self.stages[name] = self.stages.get(name, 0.0) + now - self.started_at
        self.started_at = now

    def close_queue(self, loading_s: float) -> None:
        """Ends the wait before the prefill, and divides it between the stages queue and load.

        Loading runs while the request is queued, so the time that loading took is counted as
        load, and the rest as queue.

        Args:
            loading_s: seconds of the longest load that is finished.
        """
        self.close("queue")
        self.stages["load"] = min(loading_s, self.stages["queue"])
        self.stages["queue"] -= self.stages["load"]

    def block(self) -> None:
        """Notes that the prefill now waits for KV that is still being loaded."""
        self._blocked_since = time.monotonic()

    def unblock(self) -> None:
        """Notes that the prefill continues; the time that it waited is counted as load."""
        if self._blocked_since is not None:
            waited_s = time.monotonic() - self._blocked_since
            self.stages["load"] = self.stages.get("load", 0.0) + waited_s
            self.started_at += waited_s
            self._blocked_since = None
