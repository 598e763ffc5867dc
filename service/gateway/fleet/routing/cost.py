"""What a request would take at a worker, in seconds:

    backlog + Σ_documents min(load from the best tier at the worker, compute) + question + decode

Nothing here knows which worker is which; `router` compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from service.messages.replies import WorkerLoad

Place = Literal["memory", "slow", "nowhere"]
"""Where a worker finds a chunk: in its memory tier, in a slower tier, or not at all."""

# Assumed seconds of a read and of a byte from a slower tier that a worker has never read.
UNKNOWN_TIER = (2e-4, 1 / 300e6)
# How much longer prefill takes at a worker that has other requests, as its planner assumes.
CROWDED = 2.0
# Share of a document's computing that is charged to workers other than its home, where no worker
# holds it. What one worker holds need not be held by another; so much waiting is that worth.
AWAY = 0.1


@dataclass(frozen=True)
class Work:
    """What a prompt asks for, whichever worker does it.

    Attributes:
        documents: tokens of each document.
        question: tokens of the question.
        answer: tokens that the answer is expected to have.
        repair: share of a stored document's tokens that the fusion method computes anew.
    """

    documents: Sequence[int]
    question: int
    answer: float
    repair: float = 0.0


@dataclass(frozen=True)
class Cost:
    """Seconds, by what they are spent on."""

    backlog_s: float
    documents_s: float
    question_s: float
    decode_s: float
    away_s: float = 0.0

    @property
    def prefill_s(self) -> float:
        """Seconds that the worker will be busy with the prompt."""
        return self.documents_s + self.question_s

    @property
    def total_s(self) -> float:
        return self.backlog_s + self.prefill_s + self.decode_s + self.away_s


def document_s(tokens: int, place: Place, load: WorkerLoad, repair: float = 0.0) -> float:
    """Seconds until a document's KV is in place: loaded and repaired, or computed."""
    compute_s = tokens * load.token_s
    if place == "nowhere":
        return compute_s
    loaded_s = repair * compute_s
    if place == "slow":
        nbytes = tokens * load.token_bytes
        tiers = load.tiers.values() or [UNKNOWN_TIER]
        loaded_s += min(latency + nbytes * byte_s for latency, byte_s in tiers)
    return min(loaded_s, compute_s)


def cost(
    work: Work,
    load: WorkerLoad,
    places: Sequence[Place],
    *,
    backlog_s: float = 0.0,
    in_flight: int = 0,
    away: Sequence[bool] = (),
    reused: int = 0,
) -> Cost:
    """What a prompt would take at a worker.

    Args:
        places: where the worker finds each document.
        in_flight: other requests that the worker has.
        away: of each document, whether another worker is its home; empty: of none.
        reused: first tokens of the prompt whose KV an earlier prompt left at the worker.
    """
    if in_flight:
        load = replace(load, token_s=CROWDED * load.token_s, overhead_s=CROWDED * load.overhead_s)
    documents_s = sum(
        document_s(tokens, place, load, work.repair)
        for tokens, place in zip(work.documents, places, strict=True)
    )
    question_s = load.overhead_s + work.question * load.token_s
    if reused:
        rest = max(1, sum(work.documents) + work.question - reused)
        rest_s = load.overhead_s + rest * load.token_s
        if rest_s < documents_s + question_s:
            documents_s, question_s = 0.0, rest_s
    step_s = load.step_s + load.step_sequence_s * (in_flight + 1)
    away_s = sum(
        AWAY * tokens * load.token_s
        for tokens, is_away in zip(work.documents, away, strict=False)
        if is_away
    )
    return Cost(backlog_s, documents_s, question_s, work.answer * step_s, away_s)
