"""Records of one prompt and configuration each, appended to a JSONL file as they are made.

A record is identified by what was measured (the prompt's ids, the configuration's parameters), so a
run continues where another stopped, also with more samples or configurations. A file belongs to one
model, whose fingerprint the caller puts into the file's name.

How long a run may take, counted over all its parts: a run that was stopped goes on.

Measures candidates on prompts once: what is recorded is not measured again. Every result file says
what it was measured on: machine, versions, commit.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import Field, asdict, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch

from kvstitch_tune.candidates import Candidate
from kvstitch_tune.prompts import Prompt
from kvstitch_tune.trial import Trial

_ROOT = Path(__file__).resolve().parents[3]
_PACKAGES = (
    "torch",
    "transformers",
    "safetensors",
    "numpy",
    "redis",
    "faiss-cpu",
    "pyzmq",
    "kvstitch",
)

# Result files are ignored here, because they are written while others are still measured.
_CHANGES = (
    *("status", "--porcelain", "--untracked-files=no", "--"),
    *(":(top)", ":(top,exclude)benchmarks/results"),
)


def describe() -> dict[str, Any]:
    """Return a JSON-ready record, without the host's name and paths."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "packages": {name: v for name in _PACKAGES if (v := _version(name))},
        **_commit(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> dict[str, Any]:
    """Return the commit of a checkout; where the package is installed there is none."""
    if _git("rev-parse", "--show-toplevel") != str(_ROOT):
        return {"commit": None, "uncommitted": None}
    return {"commit": _git("rev-parse", "HEAD"), "uncommitted": bool(_git(*_CHANGES))}


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


_DIGITS = 5
"""Significant digits of stored floats."""


class _Recorded(Protocol):
    """A frozen dataclass of plain values, with the keys of prompt and configuration."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def prompt(self) -> str: ...

    @property
    def configuration(self) -> str: ...


R = TypeVar("R", bound=_Recorded)


class RecordFile(Generic[R]):
    """Records of one kind for one model, in one file; `add` writes immediately."""

    def __init__(self, path: Path, kind: type[R]) -> None:
        self.path = path
        self._kind = kind
        self._known: dict[tuple[str, str], R] = {}

    def load(self) -> None:
        """Reads the records of earlier runs; an incomplete last line is dropped."""
        if not self.path.exists():
            return
        whole, _, _ = self.path.read_text(encoding="utf-8").rpartition("\n")
        for line in whole.splitlines():
            record = self._kind(**json.loads(line))
            self._known[record.prompt, record.configuration] = record
        self.path.write_text(whole + "\n" if whole else "", encoding="utf-8")

    def discard(self) -> None:
        self._known.clear()
        self.path.unlink(missing_ok=True)

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._known

    def __getitem__(self, key: tuple[str, str]) -> R:
        """Return the record of a prompt key and a configuration key."""
        return self._known[key]

    def add(self, records: Iterable[R]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for record in records:
                values = {f.name: _short(getattr(record, f.name)) for f in fields(record)}
                short = self._kind(**values)
                self._known[short.prompt, short.configuration] = short
                file.write(json.dumps(asdict(short), separators=(",", ":")) + "\n")


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return [_short(v) for v in value] if isinstance(value, list) else value


class TimeBudget:
    """Counts the seconds that a run has taken, and keeps the count in a file."""

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
        """Return seconds until so much of the budget is spent; negative afterwards."""
        return share * self.seconds - self.spent


class Runner(Protocol):
    """Measures candidates on a prompt; `measuring.trial.TrialRunner` does."""

    def measure(
        self, prompt: Prompt, candidates: Sequence[Candidate]
    ) -> Iterator[Sequence[Trial]]: ...


class Trials:
    """The trials of a run, recorded as they are made."""

    def __init__(
        self,
        path: Path,
        runner: Runner,
        budget: TimeBudget,
        on_progress: Callable[[str, int, int], None],
    ) -> None:
        self._records = RecordFile(path, Trial)
        self._records.load()
        self._runner = runner
        self.budget = budget
        self._on_progress = on_progress
        self.made = 0

    def known(self, prompt: Prompt, candidates: Sequence[Candidate]) -> bool:
        """Return whether all of these are recorded."""
        return all((prompt.key, c.key) in self._records for c in candidates)

    def measure(self, prompt: Prompt, candidates: Sequence[Candidate]) -> None:
        """Measures what is missing and records it."""
        missing = [c for c in candidates if (prompt.key, c.key) not in self._records]
        if missing:
            for trials in self._runner.measure(prompt, missing):
                self._records.add(trials)
                self.made += len(trials)
                self.budget.save()

    def measure_all(
        self,
        stage: str,
        prompts: Sequence[Prompt],
        candidates: Sequence[Candidate],
        *,
        until: float,
        least: int,
        before: int = 0,
    ) -> list[Prompt]:
        """Measures prompt by prompt until a share of the time budget is spent."""
        done: list[Prompt] = []
        for prompt in prompts:
            enough = len(done) >= least and self.budget.left_until(until) <= 0
            if enough and not self.known(prompt, candidates):
                break
            self.measure(prompt, candidates)
            done.append(prompt)
            self._on_progress(stage, before + len(done), len(candidates))
        return done

    def of(self, candidate: Candidate, prompts: Sequence[Prompt]) -> list[Trial]:
        """The recorded trials of a candidate on these prompts, in their order; all must exist."""
        return [self._records[prompt.key, candidate.key] for prompt in prompts]

    def complete(self, candidates: Sequence[Candidate], prompts: Sequence[Prompt]) -> list[Prompt]:
        """Return those of the prompts that all of these candidates are measured on."""
        return [prompt for prompt in prompts if self.known(prompt, candidates)]
