"""A request's segments as the planner sees them: the one view that answering, waiting and
explaining share."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

from service.worker.loading.chunk_stream import parts_of, stored_bytes
from service.worker.loading.segment_load import UNCACHED, SegmentLoad
from service.worker.loading.stream_reader import MEMORY
from service.worker.methods.bases.fusion import Reads
from service.worker.model.addressing import Address
from service.worker.planner.planner import Planner, Prompt, Waiting
from service.worker.sequences.sequence import Sequence


@dataclass(frozen=True)
class FoundSegment:
    """A segment, and where its KV was found.

    Attributes:
        number: 0 is S, then the documents.
        tokens: of the segment.
        tier: the fastest that has it; `UNCACHED`: none has, or the method reads nothing.
        stored_bytes: bytes of its whole stored KV.
        load_bytes: bytes that the method reads of it.
        address: None for an empty segment.
    """

    number: int
    tokens: int
    tier: str = UNCACHED
    stored_bytes: int = 0
    load_bytes: int = 0
    address: Address | None = None

    @property
    def is_slow(self) -> bool:
        """Reading it takes time that is worth a decision."""
        return self.tier not in (UNCACHED, MEMORY)

    @property
    def waiting(self) -> Waiting:
        assert self.address is not None
        return Waiting(self.tokens, self.tier, self.load_bytes, len(parts_of(self.address)))


def found_segments(sequence: Sequence, tiers: Mapping[str, str]) -> list[FoundSegment]:
    """Every segment, S first. `tiers` is the fastest tier by chunk key."""
    fusion, lengths = sequence.fusion, sequence.document_tokens
    share = min(1.0, fusion.max_kept_tokens(lengths) / max(1, sum(lengths)))
    out = []
    for number, address in enumerate(sequence.addresses):
        tokens = lengths[number - 1] if number else len(sequence.request.system)
        tier = tiers.get(address.key) if address is not None else None
        if address is None or fusion.reads is Reads.NOTHING:
            out.append(FoundSegment(number, tokens))
            continue
        size = stored_bytes(address)
        read = int(size * (share if number else 1.0)) if tier is not None else 0
        out.append(FoundSegment(number, tokens, tier or UNCACHED, size, read, address))
    return out


@dataclass(frozen=True)
class LoadPlan:
    """What is loaded and what is computed, when it becomes known where the chunks are.

    Attributes:
        prompt: what the planner was asked about, with the segments to compute counted in.
        loads: slow segments that are read.
        recompute: slow segments that are computed sooner than they are read.
    """

    prompt: Prompt
    loads: Many[FoundSegment]
    recompute: Many[FoundSegment]


def plan_loads(
    sequence: Sequence,
    segments: Many[FoundSegment],
    planner: Planner | None,
    bytes_left: Mapping[str, float],
    *,
    crowded: bool = False,
) -> LoadPlan:
    """Decide for every segment in a slow tier.

    Args:
        planner: None to load whatever is stored.
        bytes_left: by tier, bytes that all requests are still reading.
        crowded: others decode meanwhile.
    """
    slow = [segment for segment in segments if segment.is_slow]
    prompt = _prompt(sequence, segments, slow, bytes_left, crowded=crowded)
    given_up: list[FoundSegment] = []
    # A method that reads parts waits for all of them before it starts: none is given up.
    if planner is not None and slow and sequence.fusion.reads is Reads.CHUNKS:
        chosen = planner.recompute(prompt, [segment.waiting for segment in slow])
        given_up = [segment for i, segment in enumerate(slow) if i in chosen]
    loads = [segment for segment in slow if segment not in given_up]
    prompt = _prompt(sequence, segments, slow, bytes_left, crowded=crowded, computed=given_up)
    return LoadPlan(prompt, loads, given_up)


def _prompt(
    sequence: Sequence,
    segments: Many[FoundSegment],
    slow: Many[FoundSegment],
    bytes_left: Mapping[str, float],
    *,
    crowded: bool,
    computed: Many[FoundSegment] = (),
) -> Prompt:
    uncached = [s for s in segments if s.tier == UNCACHED] + list(computed)
    ready = [s.tokens for s in segments if s.number and s.tier == MEMORY and s.tokens]
    return Prompt(
        tokens=sequence.prompt_tokens,
        question=len(sequence.request.question),
        method=sequence.fusion,
        uncached_tokens=sum(s.tokens for s in uncached),
        documents=ready,
        others_bytes=bytes_left,
        crowded=crowded,
    )


# -- while the prompt waits -----------------------------------------------------------------------


def loads_under_way(sequence: Sequence) -> list[SegmentLoad]:
    """Segments that are still being read."""
    return [
        load
        for load in sequence.segments
        if isinstance(load, SegmentLoad) and load.usable and load.stream and not load.stream.done
    ]


def waiting_prompt(
    sequence: Sequence,
    loads: Many[SegmentLoad],
    bytes_left: Mapping[str, float],
    *,
    crowded: bool = False,
    exact_layers_done: int = 0,
) -> Prompt:
    """The prompt as it stands.

    Args:
        loads: this prompt's own reads under way.
        bytes_left: by tier, bytes that all requests are still reading, these loads included.
    """
    known = [load for load in sequence.segments if load is not None and load.pending is None]
    documents = sequence.segments[1:]
    others = dict(bytes_left)
    for load in loads:
        assert load.stream is not None and load.stream.tier is not None
        tier = load.stream.tier
        others[tier] = max(0.0, others.get(tier, 0.0) - load.stream.bytes_left)
    return Prompt(
        tokens=sequence.prompt_tokens,
        question=len(sequence.request.question),
        method=sequence.fusion,
        uncached_tokens=sum(len(load.address.ids) for load in known if not load.usable),
        documents=[
            len(load.address.ids)
            for load in documents
            if load is not None and load.usable and load not in loads
        ],
        others_bytes=others,
        exact_layers_done=exact_layers_done,
        crowded=crowded,
    )


def rest_of(load: SegmentLoad) -> Waiting:
    """What is left of a load under way."""
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
