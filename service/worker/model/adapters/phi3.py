"""Phi-3, Phi-3.5 and Phi-4: the checkpoint holds fused projections."""

from __future__ import annotations

from typing import Any

from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.adapters.fused_linear import FusedLinear, fuse


class Adapter(DecoderAdapter):
    family = "phi3"

    def fused_qkv(self, attention: Any) -> FusedLinear:
        return fuse(attention.qkv_proj)

    def fused_mlp(self, mlp: Any) -> FusedLinear:
        fuse(mlp.down_proj)
        return fuse(mlp.gate_up_proj)
