"""Gemma 1: Llama with scaled embeddings, GELU, and norms that add one to their weights."""

from __future__ import annotations

from service.worker.model.decoder.gemma_layers import GemmaModel


class Model(GemmaModel):
    family = "gemma"
