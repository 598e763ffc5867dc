"""Llama 2 and 3, and models of that architecture (SmolLM, TinyLlama, the demo model)."""

from __future__ import annotations

from service.worker.model.adapters.base import DecoderAdapter


class Adapter(DecoderAdapter):
    family = "llama"
