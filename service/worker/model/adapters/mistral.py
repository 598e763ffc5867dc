"""Mistral: as Llama. Where the config has a sliding window, it limits the context."""

from __future__ import annotations

from service.worker.model.adapters.base import DecoderAdapter


class Adapter(DecoderAdapter):
    family = "mistral"
