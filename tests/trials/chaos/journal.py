"""What was done and counted: the steps of an episode for a replay, the counts for the report."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any


class Journal:
    """Counters of a whole campaign and the steps of one episode. Several threads write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self.counts: Counter[str] = Counter()
        self.steps: list[str] = []
        self.violations: list[str] = []

    def begin(self, title: str) -> None:
        with self._lock:
            self._began = time.monotonic()
            self.steps = [title]

    def step(self, what: str) -> None:
        """One line of the episode's log."""
        with self._lock:
            line = f"{time.monotonic() - self._began:7.2f} {what}"
            self.steps.append(line)
            with (self._folder / "steps.log").open("a") as log:
                log.write(f"{self.steps[0]} {line}\n")

    def count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self.counts[name] += by

    def violation(self, what: str) -> None:
        """Noted by whoever sees it; the episode ends with it."""
        self.step(f"VIOLATION {what}")
        with self._lock:
            self.violations.append(what)

    def total(self, prefix: str) -> int:
        with self._lock:
            return sum(n for name, n in self.counts.items() if name.startswith(prefix))

    def as_json(self) -> dict[str, Any]:
        with self._lock:
            return dict(sorted(self.counts.items()))

    def write_violation(self, number: int, header: str, service_log: str) -> Path:
        """A file with everything that is needed to look into it, or to do it again."""
        path = self._folder / f"violation-{number}.txt"
        with self._lock:
            lines = [header, "", *self.violations, "", *self.steps, "", service_log]
        path.write_text("\n".join(lines) + "\n")
        return path

    def load(self, counts: dict[str, int]) -> None:
        """Go on with the counts of an earlier run."""
        self.counts = Counter(counts)


def load_json(path: Path) -> Any:
    """The content of a JSON file; None if there is none."""
    return json.loads(path.read_text()) if path.is_file() else None


def save_json(path: Path, content: Any) -> None:
    """Whole or not at all: a chaos run, too, may be killed."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)
