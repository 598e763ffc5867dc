"""Qwen2 and Qwen2.5: q, k and v projections have biases, keys are stored with theirs added."""

from __future__ import annotations

from service.worker.model.adapters.base import DecoderAdapter


class Adapter(DecoderAdapter):
    family = "qwen2"
