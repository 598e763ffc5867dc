"""Qwen2 and Qwen2.5: q, k and v projections carry biases; keys are stored after the bias."""

from __future__ import annotations

from service.worker.model.adapters.base import DecoderAdapter


class Adapter(DecoderAdapter):
    family = "qwen2"
