"""Gemma 2: more norms, soft caps of scores and logits, a sliding window in every other layer."""

from __future__ import annotations

from service.worker.model.decoder.gemma_layers import SlidingGemmaModel


class Model(SlidingGemmaModel):
    family = "gemma2"
