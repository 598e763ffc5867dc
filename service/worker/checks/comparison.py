"""Two next-token distributions of one prompt: how far apart. And the one that is the truth.

Knows no request and no policy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from service.worker.core.layout import PromptLayout
from service.worker.core.request import Request
from service.worker.core.steps import Steps
from service.worker.forward.chunk_prefill import ScratchKV
from service.worker.forward.prefill import prefill
from service.worker.gate.policy import Observation
from service.worker.methods.fusion.vanilla import Method as Vanilla
from service.worker.model.adapters.base import DecoderAdapter

WORST_NATS = 20.0
"""KL counts as at most this much, so also where the fused logits are no numbers at all."""


def compare(full: Tensor, fused: Tensor) -> Observation:
    """KL(full ‖ fused) and top-1 of logits `[vocabulary]`: what the model says at temperature 1,
    whatever temperature the request was sampled at."""
    p, q = (torch.log_softmax(logits.double(), -1) for logits in (full, fused))
    # A token that full prefill gives no mass at all adds nothing, whatever the other says.
    kl = float(torch.where(p > -math.inf, p.exp() * (p - q), 0.0).sum())
    if not math.isfinite(kl):
        return Observation(WORST_NATS, False)
    return Observation(min(max(kl, 0.0), WORST_NATS), bool(full.argmax() == fused.argmax()))


def full_logits(adapter: DecoderAdapter, request: Request) -> Steps[Tensor]:
    """Logits `[vocabulary]` of the prompt's first answer token by full prefill: nothing cached is
    read, nothing is kept but one layer at a time, so no KV of the pool is taken."""
    documents = [document.ids for document in request.documents]
    cold = [True] * (1 + len(documents))
    layout = PromptLayout.of(
        request.system, documents, request.question, uncached=cold, device=adapter.device
    )
    scratch = ScratchKV(adapter, layout.tokens)
    return (yield from prefill(adapter, layout, [None] * len(cold), Vanilla(), scratch)).logits
