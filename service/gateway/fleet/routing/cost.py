"""What a request would take at each worker, in seconds:

    backlog + Σ_documents min(load from the best tier at the worker, compute) + question + decode

The sums are made for all workers at once, over columns of numbers. `router` compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from service.gateway.fleet.routing.worker_table import Floats, WorkerTable

Place = Literal["memory", "slow", "nowhere"]
"""Where a worker finds a chunk: in its memory tier, in a slower tier, or not at all."""
Bools = npt.NDArray[np.bool_]

# How much longer prefill takes at a worker that has other requests, as its planner assumes.
CROWDED = 2.0
# Share of a document's computing that is charged to workers other than its home, where no worker
# holds it. What one worker holds need not be held by another; so much waiting is that worth.
AWAY = 0.1


@dataclass(frozen=True)
class Work:
    """What a prompt asks for, whichever worker does it.

    Attributes:
        names: Of its documents' chunks.
        documents: Tokens of each document.
        question: Tokens of the question.
        answer: Tokens that the answer is expected to have.
        repair: Share of a stored document's tokens that the fusion method computes anew.
        system: Tokens of S.
        beginnings: Names of the prompt's beginnings, see `directory.prompt_beginnings`.
    """

    names: Sequence[bytes]
    documents: Sequence[int]
    question: int = 0
    answer: float = 0.0
    repair: float = 0.0
    system: int = 0
    beginnings: Sequence[bytes] = field(default=(), repr=False)


class Costs(NamedTuple):
    """Seconds at each worker, by what they are spent on, each `[workers]`."""

    backlog_s: Floats
    prefill_s: Floats
    decode_s: Floats
    away_s: Floats

    @property
    def total_s(self) -> Floats:
        total: Floats = self.backlog_s + self.prefill_s + self.decode_s + self.away_s
        return total


def document_s(compute_s: Floats | float, read_s: Floats | float, repair: float) -> Floats:
    """Return the seconds until documents' KV is in place: read and repaired, or computed."""
    in_place: Floats = np.minimum(repair * compute_s + read_s, compute_s)
    return in_place


def costs(
    work: Work,
    table: WorkerTable,
    *,
    held: Bools,
    places: Sequence[Place],
    away: Bools,
    reused: Floats,
) -> Costs:
    """Return what a prompt takes at each worker."""
    crowd = np.where(table.in_flight > 0, CROWDED, 1.0)
    speeds = table.speeds()
    token_s = speeds.token_s * crowd
    overhead_s = speeds.overhead_s * crowd
    tokens = np.array(work.documents, np.float64)[:, None]
    compute_s = tokens * token_s
    read_s = np.zeros_like(compute_s)
    slow = [document for document, place in enumerate(places) if place == "slow"]
    cold = [document for document, place in enumerate(places) if place == "nowhere"]
    if slow:
        read_s[slow] = np.where(held[slow], 0.0, table.read_s(tokens[slow]))
    if cold:
        read_s[cold] = np.where(held[cold], 0.0, np.inf)
    prefill_s = document_s(compute_s, read_s, work.repair).sum(axis=0)
    prefill_s += overhead_s + work.question * token_s
    rest = np.maximum(1.0, sum(work.documents) + work.question - reused)
    rest_s = overhead_s + rest * token_s
    prefill_s = np.where(reused > 0, np.minimum(rest_s, prefill_s), prefill_s)
    step_s = speeds.step_s + speeds.step_sequence_s * (table.in_flight + 1)
    away_s = AWAY * (compute_s * away).sum(axis=0)
    return Costs(table.backlog_s, prefill_s, work.answer * step_s, away_s)
