"""The prefill of a prompt that begins with a kept one: only what comes after it is computed."""

from __future__ import annotations

from dataclasses import replace

import torch

from service.worker.forward.prefill import prefill
from service.worker.kv.pool import SequenceKV
from service.worker.layout import PromptLayout
from service.worker.methods.fusion.pie import Method as QuestionOnly
from service.worker.methods.layer_view import PrefillResult
from service.worker.model.decoder import DecoderModel
from service.worker.sequences.kept_prompt import Reuse
from service.worker.steps import Steps


def continued_prefill(
    decoder: DecoderModel, layout: PromptLayout, kv: SequenceKV, reuse: Reuse
) -> Steps[PrefillResult]:
    """Copies the kept tokens' KV at once, because it may be given up later; returns the steps."""
    reuse.kept.kv.copy_to(kv, reuse.tokens)
    return _steps(decoder, layout, kv, reuse)


def _steps(
    decoder: DecoderModel, layout: PromptLayout, kv: SequenceKV, reuse: Reuse
) -> Steps[PrefillResult]:
    if reuse.tokens == layout.tokens:
        nothing = torch.empty(0, dtype=torch.long, device=layout.ids.device)
        none = [0] * decoder.layers
        return PrefillResult(reuse.kept.logits.clone(), [], none, nothing, 0.0, layout)
    rest = PromptLayout(layout.ids, (), question_start=reuse.tokens)
    result = yield from prefill(decoder, rest, [], QuestionOnly(), kv)
    return replace(result, layout=layout)
