"""How long a run may take, counted over all its parts: a run that was stopped goes on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path


class TimeBudget:
    """Counts the seconds that a run has taken, and keeps the count in a file.

    Args:
        path: of the file.
        seconds: that the run may take.
        clock: seconds that only grow.
    """

    def __init__(
        self, path: Path, seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self.seconds = seconds
        self._clock = clock
        self._before = 0.0
        self._started = clock()

    def load(self) -> None:
        """Reads what earlier parts of the run have taken; a damaged file counts as none."""
        try:
            self._before = float(json.loads(self._path.read_text())["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            self._before = 0.0

    def save(self) -> None:
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps({"seconds": round(self.spent, 1)}) + "\n")
        os.replace(part, self._path)

    @property
    def spent(self) -> float:
        """Seconds so far, those of earlier parts included."""
        return self._before + self._clock() - self._started

    def left_until(self, share: float) -> float:
        """Seconds until so much of the budget is spent; negative afterwards."""
        return share * self.seconds - self.spent
