"""What the layer loop needs of a decoder: embed, qkv before RoPE, finish a layer, logits.

The stock transformers modules hold the weights; an adapter takes them apart, so that QKV of all
rows and attention of some rows can be separated and keys are seen before RoPE. Projections that
read the same rows are one product (`service.worker.model.adapters.fused_linear`), in the arithmetic
fastest for their number (`service.worker.kernels.cpu.cpu_linear`); norms are the modules' or their
kernel's (`service.worker.model.adapters.norms`). Knows no cache, no method, no request.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from service.errors import ModelRefused
from service.worker.core.steps import Steps, run
from service.worker.kernels.cpu import cpu_linear
from service.worker.model.adapters.fused_linear import Joined, join
from service.worker.model.adapters.norms import add_and_norm, norm
from service.worker.model.rope import RotaryTable
from service.worker.model.supported import families


class DecoderAdapter:
    """A pre-norm decoder with GQA, RoPE and a gated MLP, laid out like Llama's modules."""

    family = "llama"

    def __init__(self, model: Any) -> None:
        config = model.config
        self.model = model
        self.config = config
        self.layers = int(config.num_hidden_layers)
        self.heads = int(config.num_attention_heads)
        self.kv_heads = int(config.num_key_value_heads or self.heads)
        self.hidden = int(config.hidden_size)
        self.head_dim = int(getattr(config, "head_dim", None) or self.hidden // self.heads)
        self.vocabulary = int(config.vocab_size)
        self.intermediate = int(config.intermediate_size)
        self.scale = float(self.head_dim**-0.5)
        weight = model.get_input_embeddings().weight
        self.dtype: torch.dtype = weight.dtype
        self.device: torch.device = weight.device
        self.blocks = list(model.model.layers)
        self._qkv: list[Joined] = []
        self._gate_up: list[Joined] = []
        for block in self.blocks:
            at, mlp = block.self_attn, block.mlp
            self._qkv.append(join(at.q_proj, at.k_proj, at.v_proj))
            self._gate_up.append(join(mlp.gate_proj, mlp.up_proj))
            for alone in (at.o_proj, mlp.down_proj):
                join(alone)
        join(model.lm_head)
        self.max_context = self._max_context()
        self.rope = RotaryTable.of(config, model.model.rotary_emb, self.max_context, self.device)

    def _max_context(self) -> int:
        """Tokens of prompt plus answer that full attention covers exactly."""
        limit = int(self.config.max_position_embeddings)
        types = getattr(self.config, "layer_types", None)
        window = getattr(self.config, "sliding_window", None)
        if types is not None:
            slides = "sliding_attention" in types
        else:
            slides = bool(window) and bool(getattr(self.config, "use_sliding_window", True))
        # Up to the window a sliding layer is full attention; beyond it stored keys would be used
        # where the model never looked.
        return min(limit, int(window)) if slides and window else limit

    def embed(self, ids: Tensor) -> Tensor:
        """ids `[m]` → hidden `[m, hidden]`."""
        return F.embedding(ids, self.model.get_input_embeddings().weight)

    def qkv(self, layer: int, x: Tensor, *, batch: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """q `[m, heads, d]`, k and v `[m, kv_heads, d]`, all before RoPE, after any q/k norm.

        batch, here and below: the rows are of different sequences, whose number must not decide how
        they are computed."""
        block, fused_linear = self.blocks[layer], self._qkv[layer]
        normed = norm(block.input_layernorm, x)
        out = cpu_linear.linear(normed, fused_linear.weight, fused_linear.bias, batch=batch)
        heads = out.view(len(x), -1, self.head_dim)
        first_v = self.heads + self.kv_heads
        q, k = self.normalise(
            block.self_attn, heads[:, : self.heads], heads[:, self.heads : first_v]
        )
        return q, k, heads[:, first_v:]

    def normalise(self, attention: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Hook for families with a norm on queries and keys."""
        return q, k

    def finish(self, layer: int, x: Tensor, attended: Tensor, *, batch: bool = False) -> Tensor:
        """Output projection, residual, MLP: x `[m, hidden]`, attended `[m, heads · d]`."""
        return run(self.finish_steps(layer, x, attended, batch=batch))

    def finish_steps(
        self, layer: int, x: Tensor, attended: Tensor, *, batch: bool = False
    ) -> Steps[Tensor]:
        """`finish`, paused where many rows take long."""
        block = self.blocks[layer]
        o_proj = block.self_attn.o_proj
        projected = cpu_linear.linear(attended, o_proj.weight, o_proj.bias, batch=batch)
        x, normed = add_and_norm(block.post_attention_layernorm, x, projected)
        return x + (yield from self._mlp(layer, normed, batch))

    def _mlp(self, layer: int, x: Tensor, batch: bool) -> Steps[Tensor]:
        mlp, fused_linear = self.blocks[layer].mlp, self._gate_up[layer]
        down = mlp.down_proj
        if fused_linear.bias is None and down.bias is None:
            gate, up = fused_linear.weight.chunk(2)
            # Said by its name: whoever computes it within a product knows functions, not modules.
            silu = self.config.hidden_act in ("silu", "swish")
            parts = (x, gate, up, down.weight, F.silu if silu else mlp.act_fn)
            if cpu_linear.supports_gated_mlp(*parts, batch=batch):
                return (yield from cpu_linear.gated_mlp(*parts))
        gate, up = cpu_linear.linear(x, fused_linear.weight, fused_linear.bias, batch=batch).chunk(
            2, dim=-1
        )
        return cpu_linear.linear(mlp.act_fn(gate).mul_(up), down.weight, down.bias, batch=batch)

    def logits(self, x: Tensor, *, batch: bool = False) -> Tensor:
        """Next-token logits in fp32 of the last layer's rows: `[m, vocabulary]`."""
        head = self.model.lm_head
        x = norm(self.model.model.norm, x)
        return cpu_linear.linear(x, head.weight, head.bias, batch=batch).float()

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        for source in (getattr(self.model, "generation_config", None), self.config):
            end = getattr(source, "eos_token_id", None)
            if end is not None:
                return frozenset(end if isinstance(end, list) else [end])
        return frozenset()

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


def adapter_for(model: Any) -> DecoderAdapter:
    """The adapter whose file is named after the config's model_type. Raises ModelRefused."""
    from importlib import import_module

    name = str(model.config.model_type)
    if name not in families():
        raise ModelRefused(
            f"model_type {name!r} has no adapter; served families: {', '.join(sorted(families()))}",
            field="model",
        )
    adapter: DecoderAdapter = import_module(f"service.worker.model.adapters.{name}").Adapter(model)
    return adapter
