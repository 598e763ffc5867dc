"""Llama 2 and 3, and models of that architecture (Falcon 3, SmolLM, TinyLlama, the demo model)."""

from __future__ import annotations

from service.worker.model.decoder.base import DecoderModel


class Model(DecoderModel):
    family = "llama"
