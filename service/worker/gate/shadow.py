"""What a prompt's first token would be with full prefill, or with a method that is not trusted.

Answers are compared with the logits of full prefill. A shadow run with a method that was replaced
shows when it is good again: chunks are read as for a request, and its KV is in the pool until a
waiting request needs it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor

from kvstitch.service.messages.requests import Generate, Sampling
from kvstitch.service.worker.forward.chunk_prefill import ScratchKV
from kvstitch.service.worker.forward.prefill import prefill
from kvstitch.service.worker.gate.policy import Observation
from kvstitch.service.worker.kv.pool import KVPool
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.loading.precompute_queue import PrecomputeQueue
from kvstitch.service.worker.methods.bases.fusion import FusionMethod, Reads
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from kvstitch.service.worker.model.addressing import Address
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.sampling.sampler import Sampler
from kvstitch.service.worker.sequences.prefill_launcher import PrefillLauncher
from kvstitch.service.worker.sequences.sequence import Asked, EngineSequence
from kvstitch.service.worker.steps import Steps


@dataclass
class Shadow:
    """One prompt at a time."""

    launcher: PrefillLauncher
    pool: KVPool
    precompute_queue: PrecomputeQueue
    _sequence: EngineSequence | None = field(default=None, repr=False)
    _wants: int = 0  # tokens of KV that the run waits for

    @property
    def holds_kv(self) -> bool:
        return self._sequence is not None and self._sequence.kv is not None

    @property
    def blocked(self) -> bool:
        """Whether the run waits for KV that is not free."""
        return not self.pool.make_room(self._wants)

    def steps(
        self, request: Generate, addresses: Sequence[Address | None], fusion: FusionMethod
    ) -> Steps[Tensor | None]:
        """Return the run, in steps; closing the generator gives everything back."""
        alone = msgspec.structs.replace(request, eviction=None, sampling=Sampling(max_tokens=1))
        sequence = self._sequence = EngineSequence(
            Asked(alone, fusion, None, list(addresses)), Sampler(alone.sampling), max_tokens=1
        )
        try:
            self.launcher.loads.start(sequence.to_load, sequence.loads)
            yield from _wait_for_loads(sequence)
            if fusion.reads is Reads.PARTS and any(s and s.missed for s in sequence.loads.segments):
                return None  # the run would compute and store the missing chunks
            self._wants = self.launcher.reserved_tokens(sequence)
            while (kv := self.pool.reserve(self._wants)) is None:
                yield None
            self._wants = 0
            self.launcher.launch(sequence, kv)
            assert sequence.prefill.steps is not None
            result = yield from sequence.prefill.steps
            sequence.prefilled(result)
            return result.logits if sequence.reuses_documents else None
        finally:
            self._sequence, self._wants = None, 0
            self.launcher.loads.stop(sequence.loads)
            sequence.release()
            # Full prefill reads no chunks, so nothing else would notice that these are missing.
            self.precompute_queue.add_missed(sequence.loads.segments)


def _wait_for_loads(sequence: EngineSequence) -> Steps[None]:
    """Wait until it is known which chunks can be used."""
    if sequence.loads.found is not None:
        yield sequence.loads.found
        sequence.loads.found.result()
    for load in sequence.loads.segments:
        while load is not None and (pending := load.pending) is not None:
            yield pending


WORST_NATS = 20.0
"""Upper limit of a KL divergence in nats; also its value where the fused logits are NaN."""


def compare(full: Tensor, fused: Tensor) -> Observation:
    """Compare logits `[vocabulary]` at temperature 1, whatever the request's temperature is."""
    p, q = (torch.log_softmax(logits.double(), -1) for logits in (full, fused))
    # A token with probability 0 in full prefill adds nothing, even where log q is -inf.
    kl = float(torch.where(p > -math.inf, p.exp() * (p - q), 0.0).sum())
    if not math.isfinite(kl):
        return Observation(WORST_NATS, False)
    return Observation(min(max(kl, 0.0), WORST_NATS), bool(full.argmax() == fused.argmax()))


def full_logits(decoder: DecoderModel, request: Generate) -> Steps[Tensor]:
    """Return logits `[vocabulary]` of the first answer token by full prefill."""
    documents = [document.ids for document in request.documents]
    cold = [True] * (1 + len(documents))
    layout = PromptLayout.of(
        request.system, documents, request.question, uncached=cold, device=decoder.device
    )
    decoder = decoder.with_lora(request.lora)
    scratch = ScratchKV(decoder, layout.tokens)
    return (yield from prefill(decoder, layout, [None] * len(cold), Vanilla(), scratch)).logits
