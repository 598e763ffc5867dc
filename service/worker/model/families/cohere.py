"""Cohere's families, whose layers compute attention and MLP side by side."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from service.worker.model.attention_rule import PLAIN
from service.worker.model.decoder import DecoderModel, norm
from service.worker.model.rope import RotaryTable, halves_order
from service.worker.steps import Steps


class Cohere(DecoderModel):
    """Command R: LayerNorm without bias, attention and MLP side by side, RoPE on neighbouring
    dimensions, scaled logits."""

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


class Cohere2(Cohere):
    """Command R7B and Command A: Command R with sliding windows in three of four layers, and no
    RoPE in the fourth."""

    def rotary_tables(self) -> list[RotaryTable]:
        slides = (rule is not PLAIN for rule in self.attention_rules())
        return self.rotated_only(super().rotary_tables(), slides)
