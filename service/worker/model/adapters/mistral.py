"""Mistral. A sliding window, where the config has one, bounds the context (base class)."""

from __future__ import annotations

from service.worker.model.adapters.base import DecoderAdapter


class Adapter(DecoderAdapter):
    family = "mistral"
