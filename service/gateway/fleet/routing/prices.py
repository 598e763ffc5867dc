"""What a prompt would take at every worker: `cost.cost` for all of them at once.

The sums are the same, over columns of numbers; tests hold one against the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from service.gateway.fleet.routing.cost import AWAY, CROWDED, Place, Work
from service.gateway.fleet.routing.worker_table import Floats, WorkerTable

Bools = npt.NDArray[np.bool_]


def prices(
    work: Work,
    table: WorkerTable,
    *,
    held: Bools,
    places: Sequence[Place],
    away: Bools,
    reused: Floats,
) -> Floats:
    """Seconds until the last token, at each worker `[workers]`.

    Args:
        held: whether its memory tier has the document `[documents, workers]`.
        places: where workers find each document that they do not hold.
        away: whether another worker is the document's home `[documents, workers]`.
        reused: first tokens of the prompt whose KV an earlier one left there `[workers]`.
    """
    crowd = np.where(table.in_flight > 0, CROWDED, 1.0)
    speeds = table.speeds()
    token_s = speeds.token_s * crowd
    overhead_s = speeds.overhead_s * crowd
    tokens = np.array(work.documents, np.float64)[:, None]
    compute_s = tokens * token_s
    loaded_s = work.repair * compute_s
    slow = [document for document, place in enumerate(places) if place == "slow"]
    cold = [document for document, place in enumerate(places) if place == "nowhere"]
    if slow:
        loaded_s[slow] += np.where(held[slow], 0.0, table.read_s(tokens[slow]))
    if cold:
        loaded_s[cold] = np.where(held[cold], loaded_s[cold], np.inf)
    prefill_s = np.minimum(loaded_s, compute_s).sum(axis=0)
    prefill_s += overhead_s + work.question * token_s
    rest = np.maximum(1.0, sum(work.documents) + work.question - reused)
    rest_s = overhead_s + rest * token_s
    prefill_s = np.where(reused > 0, np.minimum(rest_s, prefill_s), prefill_s)
    away_s = AWAY * (compute_s * away).sum(axis=0)
    step_s = speeds.step_s + speeds.step_sequence_s * (table.in_flight + 1)
    decode_s = work.answer * step_s
    found: Floats = table.backlog_s + prefill_s + decode_s + away_s
    return found
