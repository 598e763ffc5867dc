"""Mistral. Where the config has a sliding window, it limits the context (see the base class)."""

from __future__ import annotations

from service.worker.model.adapters.base import DecoderAdapter


class Adapter(DecoderAdapter):
    family = "mistral"
