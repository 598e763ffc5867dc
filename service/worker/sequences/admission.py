"""Turns a request into a sequence, and refuses what can never be answered: methods and their
parameters, the model's context, and the size of the KV pool are checked here, before any work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvstitch.service.errors import InvalidRequest, PromptTooLong
from kvstitch.service.messages.requests import ChunkTokens, Generate, Precompute, Prefetch, Sampling
from kvstitch.service.shared.parameters import AUTO
from kvstitch.service.worker.methods.bases.fusion import FusionMethod, Reads
from kvstitch.service.worker.methods.registry import fusion_methods, make_eviction, make_fusion
from kvstitch.service.worker.model.addressing import Address, Addressing
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.model_facts import ModelFacts
from kvstitch.service.worker.sampling.grammar import FIELD, Grammars
from kvstitch.service.worker.sampling.sampler import LogitAdjustments, Sampler
from kvstitch.service.worker.sequences.sequence import (
    AllowedMethod,
    Asked,
    EngineSequence,
    prompt_ids,
)

Replace = Callable[[str, FusionMethod], AllowedMethod | None]


@dataclass(frozen=True)
class Admission:
    """Admits the requests of one engine. Errors name the wrong field and what to do about it."""

    decoder: DecoderModel
    addressing: Addressing
    facts: ModelFacts
    pool_tokens: int
    # from a method's name and the method, the one that the correctness gate allows instead; None if
    # there is no gate
    replace: Replace | None = None
    # compiles what answers must match; None if there is no tokenizer
    grammars: Grammars | None = None
    hands_over: bool = False  # whether another engine may decode

    def addresses(self, message: Generate | Prefetch | Precompute) -> list[Address | None]:
        """Return addresses of S and of every document, None for an empty segment; raises
        InvalidRequest if there is no such LoRA adapter."""
        lora, system, tenant = message.lora, message.system, message.tenant
        if lora and lora not in self.decoder.loras:
            names = ", ".join(sorted(self.decoder.loras)) or "none"
            raise InvalidRequest(
                f"there is no LoRA adapter {lora!r}: this worker has {names}", field="adapter"
            )
        addressing = self.addressing.with_lora(lora)
        system_address = addressing.system(system, tenant) if system else None
        document_addresses = [
            addressing.document(d.ids, message.prefix_mode, system, tenant, d.prefixes)
            if d.ids
            else None
            for d in message.documents
        ]
        return [system_address, *document_addresses]

    def purged(
        self, system: Sequence[int], documents: Sequence[ChunkTokens], tenant: str
    ) -> set[str]:
        """Return every key under which these documents may be stored, in whatever prefix mode and
        with whatever LoRA adapter."""
        return {
            key
            for lora in ("", *self.decoder.loras)
            for document in documents
            if document.ids
            for key in self.addressing.with_lora(lora).purged(
                document.ids, system, tenant, document.prefixes
            )
        }

    def sequence(self, request: Generate, arrived: float) -> EngineSequence:
        """Return the sequence of a request that arrived then, by time.monotonic, ready to be
        queued.

        Raises:
            UnknownMethod: there is no method of this name.
            InvalidRequest: a field of the request has a value that is not allowed.
            PromptTooLong: it does not fit into the model's context or the KV pool.
        """
        fusion, auto_ratio = _fusion(request.fusion.name, request.fusion.parameters)
        eviction = request.eviction and make_eviction(
            request.eviction.name, request.eviction.parameters
        )
        fusion.fit(self.facts, request.fusion.name)
        if eviction:
            eviction.check(self.facts)
            if fusion.reads is Reads.PARTS:
                raise InvalidRequest(
                    f"fusion.method {request.fusion.name} already holds only part of the "
                    "documents' KV: leave eviction out",
                    field="eviction.method",
                )
        if request.hand_over and (eviction or fusion.reads is Reads.PARTS or not self.hands_over):
            raise InvalidRequest(
                "fusion and eviction must leave all KV of a prompt that is handed over to another "
                "engine, and the worker's settings name that engine"
            )
        if request.hand_over and request.exact_below:
            raise InvalidRequest(
                "another engine decodes, and does not ask how certain a token is: leave "
                "exact_below out, of the settings and calibration, too",
                field="exact_below",
            )
        if not request.question:
            raise InvalidRequest("the question has no tokens", field="question")
        if not 0 <= request.history < len(request.question):
            raise InvalidRequest(
                f"history must be 0 to {len(request.question) - 1}, the question's tokens but one",
                field="history",
            )
        addresses = self.addresses(request)
        gated = self.replace(request.fusion.name, fusion) if self.replace else None
        if gated is not None:
            fusion = gated.fusion
        sampling = request.sampling
        self._check_tokens(sampling)
        own_ends = () if sampling.ignore_end else self.decoder.end_ids
        end_ids = frozenset((*own_ends, *sampling.stop_ids))
        asked = Asked(
            request,
            fusion,
            eviction or None,
            addresses,
            end_ids=end_ids,
            auto_ratio=auto_ratio and fusion.reads is not Reads.NOTHING,
            gated=gated,
            lora_fingerprint=request.lora and self.decoder.loras[request.lora].info.fingerprint,
            arrived=arrived,
        )
        sequence = EngineSequence(asked, self._sampler(request, end_ids), sampling.max_tokens)
        if gated is not None and gated.note is not None:
            sequence.warnings.append(gated.note.text)
        self._fit_context(sequence)
        return sequence

    def _check_tokens(self, sampling: Sampling) -> None:
        """Raise InvalidRequest where a request names a token that the model does not have."""
        for name, ids in (
            ("stop_token_ids", sampling.stop_ids),
            ("logit_bias", sampling.logit_bias),
        ):
            for token in ids:
                if not 0 <= token < self.decoder.vocabulary:
                    raise InvalidRequest(
                        f"{name}: there is no token {token}, the model's vocabulary has "
                        f"{self.decoder.vocabulary}",
                        field=name,
                    )

    def _sampler(self, request: Generate, end_ids: Collection[int]) -> Sampler:
        sampling = request.sampling
        grammar = None
        if sampling.grammar:
            if self.grammars is None:
                raise InvalidRequest(f"{FIELD}: this worker has no tokenizer", field=FIELD)
            grammar = self.grammars.compile(sampling.grammar)
        adjustments = LogitAdjustments.of(sampling, lambda: prompt_ids(request), end_ids)
        return Sampler(sampling, adjustments, grammar)

    def _fit_context(self, sequence: EngineSequence) -> None:
        limit = min(self.decoder.max_context, self.pool_tokens)
        tokens = sequence.asked.prompt_tokens
        room = limit - tokens
        if room < 1:
            raise PromptTooLong(
                f"the prompt has {tokens} tokens; this worker takes {limit - 1} "
                f"(model context {self.decoder.max_context}, KV pool {self.pool_tokens})",
                field="question",
            )
        if sequence.max_tokens > room:
            sequence.warnings.append(f"max_tokens was lowered from {sequence.max_tokens} to {room}")
            sequence.max_tokens = room


def _fusion(name: str, parameters: Mapping[str, Any]) -> tuple[FusionMethod, bool]:
    """Return the fusion method, and whether its repair ratio is "auto"."""
    given = dict(parameters)
    cls = fusion_methods().get(name)
    repair = cls.repair_parameter() if cls is not None else None
    if repair is None or given.get(repair) != AUTO:
        return make_fusion(name, given), False
    del given[repair]
    return make_fusion(name, given), True
