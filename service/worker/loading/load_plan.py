"""A prompt's segments in the form that the planner needs: to start it, to wait for its chunks,
and to explain it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvstitch.service.worker.loading.chunk_stream import parts_of, stored_bytes
from kvstitch.service.worker.loading.cost_model import LoadableSegment, Prompt
from kvstitch.service.worker.loading.loader import MEMORY
from kvstitch.service.worker.loading.planner import Planner
from kvstitch.service.worker.loading.segment_load import UNCACHED, Loads, SegmentLoad
from kvstitch.service.worker.methods.bases.fusion import FusionMethod, Reads
from kvstitch.service.worker.model.addressing import Address


@dataclass(frozen=True)
class PromptToLoad:
    """What decides, beside where its chunks are, which segments of a prompt are loaded."""

    method: FusionMethod
    addresses: Sequence[Address | None]  # of S, then of the documents; None for an empty segment
    system: int  # tokens of S
    documents: Sequence[int]  # tokens of each document
    # tokens of earlier turns that are segments of their own; `reused_turns` of them are repaired
    # like a document, the others computed
    turns: int
    reused_turns: int
    question: int  # tokens behind these
    as_stored: bool  # whether chunks that are not stored are computed by themselves
    any_method: bool  # whether full prefill may take the place of its method


@dataclass(frozen=True, kw_only=True)
class FoundSegment(LoadableSegment):
    """A segment, and the fastest tier that has its KV; `UNCACHED` if none has it or the method
    reads nothing. `nbytes` are those that the method reads."""

    number: int  # 0 for S, then 1 and up for the documents
    stored_bytes: int = 0  # bytes of its whole stored KV
    # of its chunk; None if the segment is empty or the method reads nothing
    address: Address | None = None

    @property
    def is_slow(self) -> bool:
        """Whether it is stored in a tier from which reading takes time."""
        return self.tier not in (UNCACHED, MEMORY)


def found_segments(prompt: PromptToLoad, tiers: Mapping[str, str]) -> list[FoundSegment]:
    """Return every segment of the prompt, S first; `tiers` has the fastest tier that has a
    chunk, by the chunk's key."""
    kept = prompt.method.max_kept_tokens(prompt.documents)
    share = min(1.0, kept / max(1, sum(prompt.documents)))
    lengths = [prompt.system, *prompt.documents]
    segments = []
    for number, (tokens, address) in enumerate(zip(lengths, prompt.addresses, strict=True)):
        if address is None or prompt.method.reads is Reads.NOTHING:
            segments.append(FoundSegment(tokens, UNCACHED, number=number))
            continue
        tier, size = tiers.get(address.key), stored_bytes(address)
        segments.append(
            FoundSegment(
                tokens,
                tier or UNCACHED,
                0 if tier is None else int(size * (share if number else 1.0)),
                len(parts_of(address)),
                address.prefix_lengths,
                number=number,
                stored_bytes=size,
                address=address,
            )
        )
    return segments


@dataclass(frozen=True)
class LoadPlan:
    """Which segments are loaded and which are computed, decided when the chunks were found."""

    prompt: Prompt  # for the planner, with the segments of `recompute` counted as uncached
    loads: Sequence[FoundSegment]  # slow segments that are loaded
    recompute: Sequence[FoundSegment]  # stored segments that are computed, because that is faster
    whole: bool = False  # these are all, because full prefill is not slower


def plan_loads(
    asked: PromptToLoad,
    segments: Sequence[FoundSegment],
    planner: Planner | None,
    bytes_left: Mapping[str, float],
    *,
    crowded: bool = False,
) -> LoadPlan:
    """Decide for every segment in a slow tier whether it is loaded or computed, and for the
    prompt whether all of it is computed. Without a planner everything that is stored is loaded;
    `bytes_left` are those that all requests are still reading, by tier."""

    def prompt(loads: Sequence[FoundSegment], computed: Sequence[FoundSegment]) -> Prompt:
        uncached = [s for s in segments if s.tier == UNCACHED and s.tokens] + list(computed)
        placed = [s for s in segments if s.tier == MEMORY and s not in computed]
        if asked.as_stored:
            placed += uncached
        return _prompt(
            asked,
            placed=[s.tokens for s in placed if s.number and s.tokens],
            missing=[(s.tokens, s.prefixes) for s in uncached],
            loads=loads,
            others_bytes=bytes_left,
            crowded=crowded,
        )

    slow = [segment for segment in segments if segment.is_slow]
    recompute: list[FoundSegment] = []
    whole = False
    # A method that reads parts waits for all of them before it starts, so all are loaded.
    if planner is not None and asked.method.reads is Reads.CHUNKS:
        chosen = planner.recompute(prompt(slow, ())) if slow else frozenset()
        recompute = [segment for i, segment in enumerate(slow) if i in chosen]
        stored = [s for s in segments if s.tier != UNCACHED and s.tokens]
        whole = bool(stored) and asked.any_method and planner.whole(prompt(slow, ()), chosen)
        recompute = stored if whole else recompute
    loads = [segment for segment in slow if segment not in recompute]
    return LoadPlan(prompt(loads, recompute), loads, recompute, whole)


def _prompt(
    asked: PromptToLoad,
    placed: Sequence[int],
    missing: Sequence[tuple[int, Sequence[int]]],
    **others: Any,
) -> Prompt:
    turns, reused = asked.turns, asked.reused_turns
    anew = 0 if asked.as_stored else sum(tokens for tokens, _ in missing)
    return Prompt(
        tokens=asked.system + sum(asked.documents) + turns + asked.question,
        question=asked.question,
        method=asked.method,
        uncached_tokens=anew + turns - reused,
        documents=[*placed, *([reused] if reused else [])],
        as_stored=asked.as_stored,
        alone=missing if asked.as_stored else (),
        **others,
    )


def waiting_prompt(
    asked: PromptToLoad,
    loads: Loads,
    bytes_left: Mapping[str, float],
    *,
    under_way: Sequence[SegmentLoad] = (),
    crowded: bool = False,
    exact_layers_done: int = 0,
) -> Prompt:
    """Return the prompt in its current state, for a decision about the loads `under_way` while
    its prefill waits; `bytes_left` includes these loads."""
    segments = [load for load in loads.segments if load is not None]
    documents = [load for load in loads.segments[1:] if load is not None]
    uncached = [load for load in segments if load.pending is None and not load.usable]
    placed = [load for load in documents if load.usable and load not in under_way]
    if asked.as_stored:
        placed += [load for load in documents if load in uncached]
    others = dict(bytes_left)
    for load in under_way:
        assert load.stream is not None and load.stream.tier is not None
        tier = load.stream.tier
        others[tier] = max(0.0, others.get(tier, 0.0) - load.stream.bytes_left)
    return _prompt(
        asked,
        placed=[len(load.address.ids) for load in placed],
        missing=[
            (len(load.address.ids), load.address.prefix_lengths)
            for load in uncached
            if not load.computed_alone
        ],
        loads=[_rest_of(load) for load in under_way],
        others_bytes=others,
        exact_layers_done=exact_layers_done,
        crowded=crowded,
    )


def _rest_of(load: SegmentLoad) -> LoadableSegment:
    stream = load.stream
    assert stream is not None and stream.tier is not None
    return LoadableSegment(
        len(load.address.ids),
        stream.tier,
        stream.bytes_left,
        max(1, len(stream.parts) - stream.parts_arrived),  # the last part may have just arrived
        load.address.prefix_lengths,
        time.monotonic() - stream.last_news_at,
        stream.turn_bytes,
    )
