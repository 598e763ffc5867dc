"""How long a request spent in each stage."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class StageClock:
    """Attributes:
    started_at: by time.monotonic, when the stage that is running began.
    stages: seconds by the name of the stage.
    """

    started_at: float
    stages: dict[str, float] = field(default_factory=dict)
    _blocked_since: float | None = None

    def close(self, name: str) -> None:
        """The time since the last close belongs to stage `name`."""
        now = time.monotonic()
        self.stages[name] = self.stages.get(name, 0.0) + now - self.started_at
        self.started_at = now

    def close_queue(self, loading_s: float) -> None:
        """The request waited for its turn, and for loads that took so long meanwhile. Loading
        overlaps waiting; what remains of the wait is the queue's."""
        self.close("queue")
        self.stages["load"] = min(loading_s, self.stages["queue"])
        self.stages["queue"] -= self.stages["load"]

    def block(self) -> None:
        """From now on the prefill stands still, because KV is still being loaded."""
        self._blocked_since = time.monotonic()

    def unblock(self) -> None:
        """The prefill goes on: what it stood still is loading that was not hidden."""
        if self._blocked_since is not None:
            gone = time.monotonic() - self._blocked_since
            self.stages["load"] = self.stages.get("load", 0.0) + gone
            self.started_at += gone
            self._blocked_since = None
