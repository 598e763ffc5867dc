"""Command R: LayerNorm without bias, attention and MLP side by side, RoPE on neighbouring
dimensions, scaled logits."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from service.worker.model.decoder.base import DecoderModel
from service.worker.model.decoder.norms import norm
from service.worker.model.rope import halves_order
from service.worker.steps import Steps


class Model(DecoderModel):
    family = "cohere"
    has_plain_layers = False

    def rotary_order(self) -> Tensor | None:
        return halves_order(self.head_dim, rotated=self.head_dim, interleaved=True)

    def normalise(self, attention: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if not getattr(self.config, "use_qk_norm", False):
            return q, k
        return norm(attention.q_norm, q), norm(attention.k_norm, k)

    def finish_steps(
        self, layer: int, x: Tensor, attended: Tensor, *, batch: bool = False
    ) -> Steps[Tensor]:
        projected = self.projections[layer].output(attended, batch=batch)
        beside = yield from self.mlp(layer, self.attention_input(self.blocks[layer], x), batch)
        return x + projected + beside

    def logits(self, x: Tensor, *, batch: bool = False) -> Tensor:
        return super().logits(x, batch=batch) * float(self.config.logit_scale)
