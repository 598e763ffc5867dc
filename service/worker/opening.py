"""Opens a request's prefill: what is read first, and, once that is there, the steps that run it.

The dense layer loop and its sparse counterpart part here, and nowhere else. Knows no scheduler and
no events.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from kvstore import ReadOutcome
from service.worker.adapters.base import DecoderAdapter
from service.worker.addressing import Addressing
from service.worker.calibration import ModelFacts
from service.worker.flops import full_prefill
from service.worker.fusion.samkv import Method as SamKV
from service.worker.kv_pool import SequenceKV
from service.worker.layout import PromptLayout
from service.worker.loader import EndsOutcome, Loader
from service.worker.prefill import prefill
from service.worker.sequence import Sequence
from service.worker.sparse.request import SparseRequest

Read = Future[ReadOutcome] | Future[EndsOutcome] | None


@dataclass(frozen=True)
class Opener:
    adapter: DecoderAdapter
    facts: ModelFacts
    addressing: Addressing
    loader: Loader

    def first_reads(self, sequence: Sequence) -> list[Read]:
        """Whole chunks, or for a sparse method only the documents' ends; None for an empty
        segment."""
        reads: list[Read] = []
        for segment, address in enumerate(sequence.addresses):
            if address is None:
                reads.append(None)
            elif sequence.fusion.sparse and segment > 0:
                reads.append(self.loader.load_ends(address))
            else:
                reads.append(self.loader.load(address))
        return reads

    def open(self, sequence: Sequence, kv: SequenceKV) -> None:
        """Give a loaded sequence its layout, its KV and its steps."""
        sequence.kv = kv
        self._account_for_loading(sequence)
        request = sequence.request
        chunks = [sequence.chunk(i) for i in range(len(sequence.addresses))]
        layout = PromptLayout.of(
            request.system,
            [d.ids for d in request.documents],
            request.question,
            cold=[chunk is None for chunk in chunks],
            offset=len(self.addressing.prefix(request.prefix_mode, request.system)),
            device=self.adapter.device,
        )
        sequence.layout = layout
        sequence.full_prefill_flops = full_prefill(self.adapter, layout.tokens)
        if sequence.eviction is not None:
            warning = sequence.eviction.warning(layout)
            sequence.warnings.extend([warning] if warning else [])
        if isinstance(sequence.fusion, SamKV) and sequence.runs_sparse:
            sequence.sparse = SparseRequest.of(
                self.adapter,
                self.facts,
                self.loader,
                layout,
                sequence.fusion,
                sequence.addresses,
                [load.result() if load else None for load in sequence.loads],
            )
            sequence.steps = sequence.sparse.steps(kv)
            return
        sequence.steps = prefill(
            self.adapter, layout, chunks, sequence.fusion, kv, eviction=sequence.eviction
        )

    def _account_for_loading(self, sequence: Sequence) -> None:
        loads = [load.result().seconds for load in sequence.loads if load is not None]
        sequence.close_stage("queue")
        # Loading overlaps waiting; what remains of the wait is the queue's.
        sequence.stages["load"] = min(max(loads, default=0.0), sequence.stages["queue"])
        sequence.stages["queue"] -= sequence.stages["load"]
