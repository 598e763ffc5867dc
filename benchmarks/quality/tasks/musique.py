"""MuSiQue: questions that need several passages, each with ten passages of about 500 tokens."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

DEVELOPMENT = 25
"""The first so many questions are the development part, the other 50 the test part."""
_DATA = Path(__file__).resolve().parents[1] / "data" / "musique.jsonl.gz"


@dataclass(frozen=True)
class Asked:
    question: str
    answers: tuple[str, ...]
    passages: tuple[str, ...]


def load(split: str) -> tuple[Asked, ...]:
    """The questions of "dev" or "test", in the order of the file."""
    with gzip.open(_DATA, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    chosen = rows[:DEVELOPMENT] if split == "dev" else rows[DEVELOPMENT:]
    return tuple(Asked(r["question"], tuple(r["answers"]), tuple(r["passages"])) for r in chosen)
