"""From a request to a sequence: checks everything that can be checked before any work.

Methods and parameters, the context, the pool's size; addresses of all segments. Knows no queue.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

from service.errors import InvalidRequest, PromptTooLong
from service.parameters import AUTO
from service.records import Chunk
from service.worker.core.model_facts import ModelFacts
from service.worker.core.request import Request
from service.worker.engine.sampler import Sampler
from service.worker.gate.method_trust import GatedMethod
from service.worker.methods.fusion.base import FusionMethod
from service.worker.methods.registry import make_eviction, make_fusion
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.addressing import Address, Addressing
from service.worker.sequences.sequence import Sequence

Watch = Callable[[str, FusionMethod], GatedMethod | None]


class Admission:
    """Refuses what can never be answered, with the field and the remedy."""

    def __init__(
        self,
        adapter: DecoderAdapter,
        addressing: Addressing,
        facts: ModelFacts,
        *,
        pool_tokens: int,
        watch: Watch | None = None,
    ) -> None:
        """watch: what a fusion method is replaced by where it cannot be trusted."""
        self._adapter = adapter
        self._facts = facts
        self._addressing = addressing
        self._pool_tokens = pool_tokens
        self._watch = watch

    def addresses(
        self, system: Many[int], documents: Many[Chunk], prefix_mode: str, tenant: str
    ) -> list[Address | None]:
        """Of S and every document, None where a segment is empty."""
        naming = self._addressing
        first = naming.system(system, tenant) if system else None
        rest = [
            naming.document(d.ids, prefix_mode, system, tenant) if d.ids else None
            for d in documents
        ]
        return [first, *rest]

    def sequence(self, request: Request) -> Sequence:
        """Raises UnknownMethod, InvalidRequest or PromptTooLong."""
        parameters = dict(request.fusion.parameters)
        # The planner chooses it when the prompt starts; until then it is the method's default.
        auto_ratio = parameters.get("ratio") == AUTO
        if auto_ratio:
            del parameters["ratio"]
        fusion = make_fusion(request.fusion.name, parameters)
        if auto_ratio and not hasattr(fusion, "ratio"):
            raise InvalidRequest(
                f"fusion.method {request.fusion.name} has no ratio: leave it out",
                field="fusion.ratio",
            )
        eviction = request.eviction and make_eviction(
            request.eviction.name, request.eviction.parameters
        )
        fusion.check(self._facts)
        if eviction:
            eviction.check(self._facts)
            if fusion.sparse:
                raise InvalidRequest(
                    f"fusion.method {request.fusion.name} already holds only part of the "
                    "documents' KV: leave eviction out",
                    field="eviction.method",
                )
        if not request.question:
            raise InvalidRequest("the question has no tokens", field="question")
        addresses = self.addresses(
            request.system, request.documents, request.prefix_mode, request.tenant
        )
        gated = self._watch(request.fusion.name, fusion) if self._watch else None
        if gated is not None:
            fusion = gated.fusion
        sequence = Sequence(
            request,
            fusion,
            eviction or None,
            addresses,
            loads=[None] * len(addresses),
            max_tokens=request.sampling.max_tokens,
            sampler=Sampler(request.sampling),
            auto_ratio=auto_ratio and fusion.reads_cache,
            gated=gated,
        )
        if gated is not None and gated.note is not None:
            sequence.warnings.append(gated.note.text)
        self._fit_context(sequence)
        return sequence

    def _fit_context(self, sequence: Sequence) -> None:
        limit = min(self._adapter.max_context, self._pool_tokens)
        room = limit - sequence.prompt_tokens
        if room < 1:
            raise PromptTooLong(
                f"the prompt has {sequence.prompt_tokens} tokens; this worker takes {limit - 1} "
                f"(model context {self._adapter.max_context}, KV pool {self._pool_tokens})",
                field="question",
            )
        if sequence.max_tokens > room:
            sequence.warnings.append(f"max_tokens was lowered from {sequence.max_tokens} to {room}")
            sequence.max_tokens = room
