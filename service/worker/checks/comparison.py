"""Compares a next-token distribution with that of full prefill, and computes the latter."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from service.messages.requests import Generate
from service.worker.forward.chunk_prefill import ScratchKV
from service.worker.forward.prefill import prefill
from service.worker.gate.policy import Observation
from service.worker.layout import PromptLayout
from service.worker.methods.fusion.vanilla import Method as Vanilla
from service.worker.model.decoder.base import DecoderModel
from service.worker.steps import Steps

WORST_NATS = 20.0
"""Upper limit of a KL divergence in nats; also its value where the fused logits are NaN."""


def compare(full: Tensor, fused: Tensor) -> Observation:
    """Compares logits `[vocabulary]` at temperature 1, whatever the request's temperature is."""
    p, q = (torch.log_softmax(logits.double(), -1) for logits in (full, fused))
    # A token with probability 0 in full prefill adds nothing, even where log q is -inf.
    kl = float(torch.where(p > -math.inf, p.exp() * (p - q), 0.0).sum())
    if not math.isfinite(kl):
        return Observation(WORST_NATS, False)
    return Observation(min(max(kl, 0.0), WORST_NATS), bool(full.argmax() == fused.argmax()))


def full_logits(decoder: DecoderModel, request: Generate) -> Steps[Tensor]:
    """Logits `[vocabulary]` of the first answer token by full prefill.

    No stored KV is read, and only one layer's KV is held at a time, so the pool is not used.
    """
    documents = [document.ids for document in request.documents]
    cold = [True] * (1 + len(documents))
    layout = PromptLayout.of(
        request.system, documents, request.question, uncached=cold, device=decoder.device
    )
    decoder = decoder.with_lora(request.lora)
    scratch = ScratchKV(decoder, layout.tokens)
    return (yield from prefill(decoder, layout, [None] * len(cold), Vanilla(), scratch)).logits
