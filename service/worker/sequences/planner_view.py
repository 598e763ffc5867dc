"""A sequence and its loads as the planner sees them. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Many

from service.worker.loading.chunk_stream import parts_of, stored_bytes
from service.worker.loading.segment_load import SegmentLoad
from service.worker.planner.planner import Prompt, Waiting
from service.worker.sequences.sequence import Sequence


def awaited(sequence: Sequence) -> list[SegmentLoad]:
    """Segments that are still being read."""
    return [
        load
        for load in sequence.segments
        if load is not None and load.usable and load.stream and not load.stream.done
    ]


def prompt_of(
    sequence: Sequence, loads: Many[SegmentLoad], bytes_left: Mapping[str, float]
) -> Prompt:
    """loads: this prompt's own reads under way; bytes_left: by tier, of everybody's."""
    known = [load for load in sequence.segments if load is not None and load.known]
    others = dict(bytes_left)
    for load in loads:
        assert load.stream is not None and load.stream.tier is not None
        tier = load.stream.tier
        others[tier] = max(0.0, others.get(tier, 0.0) - load.stream.bytes_left)
    return Prompt(
        sequence.prompt_tokens,
        len(sequence.request.question),
        sequence.fusion,
        sum(len(load.address.ids) for load in known if not load.usable),
        others,
    )


def asked(load: SegmentLoad, tier: str) -> Waiting:
    """A load that could begin now."""
    address = load.address
    return Waiting(len(address.ids), tier, stored_bytes(address), len(parts_of(address)))


def expected(load: SegmentLoad) -> Waiting:
    """A load under way."""
    stream = load.stream
    assert stream is not None and stream.tier is not None
    return Waiting(
        len(load.address.ids),
        stream.tier,
        stream.bytes_left,
        max(1, len(stream.parts) - stream.parts_arrived),  # the last may come this moment
        time.monotonic() - stream.last_news_at,
        stream.turn_bytes,
    )
