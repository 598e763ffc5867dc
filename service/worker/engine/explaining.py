"""What a prompt would take, without running it: where its chunks are now, what would be loaded and
what computed, and about how long that takes.

The tiers are asked where the chunks are, on a loader thread; nothing is read, nothing moves. The
times are the planner's: from what loads and prefills took here, or what is assumed before there
were any. Knows no sockets.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from service.records import Forecast, SegmentForecast
from service.worker.core.flops import full_prefill
from service.worker.core.layout import PromptLayout
from service.worker.core.request import ExplainedEvent, FailedEvent, Request
from service.worker.loading.chunk_stream import parts_of, stored_bytes
from service.worker.loading.stream_reader import MEMORY, StreamReader
from service.worker.methods.fusion.samkv import Method as SamKV
from service.worker.methods.sparse.blocks import BLOCK
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.addressing import Address, Addressing
from service.worker.planner.planner import Planner, Prompt, Waiting
from service.worker.sequences.admission import Admission
from service.worker.sequences.sequence import Sequence

COLD = "cold"


@dataclass(frozen=True)
class _Segment:
    """A segment and the tier that holds it, `COLD` if none does or the method reads none.
    load_bytes: that the method would read of it."""

    chunk_id: int
    tokens: int
    tier: str
    stored_bytes: int = 0
    load_bytes: int = 0
    parts: int = 1

    @property
    def waiting(self) -> Waiting:
        return Waiting(self.tokens, self.tier, self.load_bytes, self.parts)


class Explainer:
    """planner: what loads and prefills cost; deciding: whether requests are planned by it."""

    def __init__(
        self,
        adapter: DecoderAdapter,
        admission: Admission,
        addressing: Addressing,
        streams: StreamReader,
        planner: Planner,
        *,
        deciding: bool,
    ) -> None:
        self._adapter = adapter
        self._admission = admission
        self._addressing = addressing
        self._streams = streams
        self._planner = planner
        self._deciding = deciding
        self._asked: list[tuple[Sequence, dict[str, str], Future[None]]] = []

    def begin(self, request: Request) -> None:
        """Ask the tiers. Raises what submitting the request would raise."""
        sequence = self._admission.sequence(request)
        tiers: dict[str, str] = {}
        wanted = [address for address in sequence.addresses if address is not None]
        self._asked.append((sequence, tiers, self._streams.find(wanted, tiers.update)))

    def finished(self, *, crowded: bool) -> list[ExplainedEvent | FailedEvent]:
        """Those the tiers have answered for. crowded: others decode, which slows computing."""
        events: list[ExplainedEvent | FailedEvent] = []
        for asked in [a for a in self._asked if a[2].done()]:
            self._asked.remove(asked)
            sequence, tiers, found = asked
            try:
                found.result()
                events.append(ExplainedEvent(sequence.id, self._forecast(sequence, tiers, crowded)))
            except Exception as error:
                events.append(FailedEvent.of(sequence.id, error))
        return events

    def _forecast(self, sequence: Sequence, tiers: dict[str, str], crowded: bool) -> Forecast:
        segments = self._segments(sequence, tiers)
        slow = [s for s in segments if s.tier not in (COLD, MEMORY)]
        given_up: set[int] = set()
        if self._deciding and slow:
            prompt = self._prompt(sequence, segments, given_up, crowded)
            chosen = self._planner.recompute(prompt, [s.waiting for s in slow])
            given_up = {slow[number].chunk_id for number in chosen}
        prompt = self._prompt(sequence, segments, given_up, crowded)
        loads = [s.waiting for s in slow if s.chunk_id not in given_up]
        ratio = self._ratio(sequence, segments)
        seconds, flops = self._planner.forecast(prompt, loads, ratio)
        full_flops = full_prefill(self._adapter, sequence.prompt_tokens)
        out = [self._forecast_of(s, s.chunk_id in given_up) for s in segments]
        rows = prompt.question + prompt.uncached_tokens + int(ratio * prompt.tokens)
        return Forecast(
            prompt_tokens=prompt.tokens,
            system=out[0],
            documents=out[1:],
            recomputed_tokens=min(prompt.tokens, rows),
            flops=min(flops, full_flops),
            full_prefill_flops=full_flops,
            first_token_s=seconds,
            full_prefill_s=self._planner.compute_s(full_flops, crowded=crowded),
            measured=self._planner.compute.measured
            and all(self._planner.tiers.measured(s.tier) for s in slow),
            warnings=sequence.warnings,
        )

    def _segments(self, sequence: Sequence, tiers: dict[str, str]) -> list[_Segment]:
        request, fusion = sequence.request, sequence.fusion
        ids = [-1, *(d.chunk_id for d in request.documents)]
        lengths = [len(request.system), *(len(d.ids) for d in request.documents)]
        share = 1.0
        if isinstance(fusion, SamKV) and any(lengths[1:]):
            share = min(1.0, fusion.held_tokens(lengths[1:]) / sum(lengths[1:]))
        return [
            self._segment(chunk_id, address, tiers, share if number else 1.0)
            if address is not None and fusion.reads_cache
            else _Segment(chunk_id, length, COLD)
            for number, (chunk_id, length, address) in enumerate(
                zip(ids, lengths, sequence.addresses, strict=True)
            )
        ]

    def _segment(
        self, chunk_id: int, address: Address, tiers: dict[str, str], share: float
    ) -> _Segment:
        tier = tiers.get(address.key, COLD)
        size = stored_bytes(address)
        load_bytes = 0 if tier == COLD else int(size * share)
        return _Segment(chunk_id, len(address.ids), tier, size, load_bytes, len(parts_of(address)))

    def _prompt(
        self, sequence: Sequence, segments: list[_Segment], given_up: set[int], crowded: bool
    ) -> Prompt:
        cold = (s.tokens for s in segments if s.tier == COLD or s.chunk_id in given_up)
        return Prompt(
            sequence.prompt_tokens,
            len(sequence.request.question),
            sequence.fusion,
            sum(cold),
            self._streams.bytes_left(),
            crowded=crowded,
        )

    def _ratio(self, sequence: Sequence, segments: list[_Segment]) -> float:
        """Share of the prompt's rows that the method computes anew of what is loaded."""
        fusion, request = sequence.fusion, sequence.request
        if isinstance(fusion, SamKV):
            rows = sum(_samkv_rows(fusion, len(d.ids)) for d in request.documents)
            return rows / sequence.prompt_tokens
        ratio = float(getattr(fusion, "ratio", 0.0))
        if fusion.scouts or not fusion.reads_cache:
            return ratio
        layout = PromptLayout.of(
            request.system,
            [d.ids for d in request.documents],
            request.question,
            cold=[s.tier == COLD for s in segments],
            offset=len(self._addressing.prefix(request.prefix_mode, request.system)),
            device=self._adapter.device,
        )
        if fusion.full_layers:  # these begin with every row, and go on with a share
            return ratio
        chosen = len(fusion.start_rows(layout)) - len(request.question)
        return max(ratio, chosen / max(1, layout.tokens))

    def _forecast_of(self, segment: _Segment, given_up: bool) -> SegmentForecast:
        loaded = segment.tier != COLD and not given_up
        seconds = 0.0
        if loaded and segment.tier != MEMORY:
            tiers = self._planner.tiers
            seconds = tiers.seconds(segment.tier, segment.load_bytes, segment.parts)
        return SegmentForecast(
            chunk_id=segment.chunk_id,
            tokens=segment.tokens,
            tier=segment.tier,
            stored_bytes=segment.stored_bytes,
            load_bytes=segment.load_bytes if loaded else 0,
            action="load" if loaded else "recompute",
            load_s=seconds,
        )


def _samkv_rows(fusion: SamKV, tokens: int) -> float:
    """Of a document; one of at most three blocks is computed whole."""
    return tokens if tokens <= 3 * BLOCK else fusion.max_recomputed * tokens
