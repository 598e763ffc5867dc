"""Every place where a decoder multiplies rows by weights, a layer's norms, and its weights for
kernels that compute more than a product; also the quantising of linear modules (the setting
`quantize`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvstitch.service.worker.kernels.cpu import cpu_linear
from kvstitch.service.worker.kernels.cpu.decode_step import LayerWeights
from kvstitch.service.worker.kernels.cpu.weight import Weight, quantised, zeros_in_huge_pages
from kvstitch.service.worker.kernels.device_kernels import kernels_of

BITS = {"int8": 8, "int4": 4}
"""By the setting `quantize`."""


class Projection(Protocol):
    """One linear module, or several that read the same rows, one after the other."""

    def __call__(self, x: Tensor, *, batch: bool = False) -> Tensor:
        """Multiply x `[m, in]` → `[m, sum of out]`; `batch` as in `DecoderModel`."""


@dataclass(frozen=True)
class DenseProjection:
    """A projection with weights as the checkpoint has them."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor, *, batch: bool = False) -> Tensor:
        return cpu_linear.linear(x, self.weight, self.bias, batch=batch)

    @property
    def stored(self) -> Weight:
        """The weight for kernels that read quantised ones, too."""
        return Weight(self.weight, bias=self.bias)


@dataclass(frozen=True)
class QuantisedProjection:
    """A projection with int8 or int4 weights that kernels read."""

    stored: Weight

    def __call__(self, x: Tensor, *, batch: bool = False) -> Tensor:
        return cpu_linear.quantised_linear(x, self.stored, batch=batch)


@dataclass(frozen=True)
class ModuleProjection:
    """A projection by modules of a library, each of which knows how its weights are stored."""

    modules: tuple[Any, ...]

    def __call__(self, x: Tensor, *, batch: bool = False) -> Tensor:
        outs = [module(x) for module in self.modules]
        return torch.cat(outs, dim=-1) if len(outs) > 1 else outs[0]


@dataclass(frozen=True)
class LayerProjections:
    qkv: Projection
    output: Projection
    gate_up: Projection | None
    down: Projection | None


def fuse(*modules: Any) -> Projection:
    """Fuse modules that read the same rows into one product; also useful for a single module."""
    if all(_is_plain(module) for module in modules):
        weight = _concatenated([m.weight for m in modules])
        biases = [getattr(m, "bias", None) for m in modules]
        if all(b is None for b in biases):
            return DenseProjection(weight)
        assert None not in biases, "projections of one kind all have a bias or none has"
        return DenseProjection(weight, _concatenated(biases))
    weights = [quantised_weight(module) for module in modules]
    readable = [weight for weight in weights if weight is not None]
    if len(readable) < len(modules):
        return ModuleProjection(modules)
    return QuantisedProjection(_concatenated_quantised(readable))


def _is_plain(module: Any) -> bool:
    """Return whether it multiplies by a weight and adds a bias, and nothing else."""
    weight = getattr(module, "weight", None)
    return (
        type(module) is nn.Linear
        and "forward" not in vars(module)  # which libraries replace
        and type(weight) is nn.Parameter
        and weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
    )


def _concatenated_quantised(weights: Sequence[Weight]) -> Weight:
    scales, biases = [w.scales for w in weights], [w.bias for w in weights]
    return Weight(
        _concatenated([weight.values for weight in weights]),
        None if scales[0] is None else _concatenated(scales),
        None if biases[0] is None else _concatenated(biases),
    )


def _concatenated(parameters: Sequence[Any]) -> Tensor:
    first = parameters[0].detach()
    shape = (sum(len(p) for p in parameters), *first.shape[1:])
    whole = zeros_in_huge_pages(shape, dtype=first.dtype, device=first.device)
    at = 0
    with torch.no_grad():
        for parameter in parameters:
            part = whole[at : at + len(parameter)]
            parameter.data = part.copy_(parameter)
            at += len(parameter)
    return whole


class QuantisedLinear(nn.Module):
    """A linear module with a quantised weight, in place of transformers' own, so that its
    forward, which the start-up check compares with, uses the same weights."""

    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear, bits: int, kept: Weight | None = None) -> None:
        super().__init__()
        self.weight = quantised(linear.weight, bits) if kept is None else kept
        self.register_parameter("bias", linear.bias)
        self.out_features, self.in_features = linear.out_features, linear.in_features

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move the weight, too, when a module that contains this one is moved; its dtype stays."""
        values, scales = self.weight.values, self.weight.scales
        if (moved_values := fn(values)).dtype != values.dtype:
            moved_values = values
        self.weight = Weight(moved_values, None if scales is None else fn(scales))
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return moved

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.dequantised(x.dtype), self.bias)


def quantised_weight(module: Any) -> Weight | None:
    """Return the quantised weight of a linear module; None if kernels do not read it."""
    weight: Any = getattr(module, "weight", None)
    if isinstance(module, QuantisedLinear):
        return Weight(module.weight.values, module.weight.scales, module.bias)
    if type(module) is not nn.Linear or type(weight).__name__ != "Int8Tensor":
        return None
    rounds_rows = any(
        getattr(weight, name, None) is not None for name in ("act_quant_kwargs", "act_pre_scale")
    )
    shift, scale = getattr(weight, "zero_point", None), weight.scale
    if rounds_rows or scale.shape != (len(weight), 1) or (shift is not None and bool(shift.any())):
        return None
    on_cpu = weight.qdata.device.type == "cpu"
    return Weight(weight.qdata, scale.float().flatten(), module.bias) if on_cpu else None


class StoredEmbedding(nn.Embedding):
    """An embedding that stays in bfloat16, and whose rows are widened when they are read."""

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        return self

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).float()


def compute_in_fp32(model: Any) -> None:
    """Widen a bfloat16 model whose linear modules are quantised, if only to 16 bits, but for these
    and its embeddings."""
    table = model.get_input_embeddings()
    if type(table) is nn.Embedding:
        table.__class__ = StoredEmbedding
    model.float()


def quantise(model: Any, bits: int, kept: Mapping[str, Weight] | None = None) -> dict[str, Weight]:
    """Replace the linear modules of the layers and the head, by what is `kept` of them; return
    their weights by name. Embeddings and norms stay. 16 bits are what the checkpoint has."""
    found: dict[str, Weight] = {}
    for parent, names, n in (
        (model.model.layers, list(model.model.layers.named_modules()), bits),
        (model, [("lm_head", model.lm_head)], max(bits, 8)),
    ):
        for name, linear in names:
            if isinstance(linear, nn.Linear):
                made = QuantisedLinear(linear, n, (kept or {}).get(name))
                parent.set_submodule(name, made)
                found[name] = made.weight
    return found


PLAIN_NORMS = frozenset(
    f"{family}RMSNorm"
    for family in (
        *("Granite", "Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen2Moe", "Qwen3"),
        *("Qwen3Moe", "SmolLM3", "DeepseekV2", "DeepseekV3", "Glm4MoeLite"),
    )
)
"""transformers has one class per family, and these compute the same. Others do not: Gemma's adds
one to the weight, OLMo 2's rounds later."""

FOR_KERNELS = (DenseProjection, QuantisedProjection)
"""Projections whose weights a kernel may multiply by itself."""


def norm(module: Any, x: Tensor) -> Tensor:
    """Return the norm of x, `[m, width]` or `[m, heads, width]`, by a transformers module."""
    return kernels_of(x.device).normalise(module, x)


def is_plain(module: Any) -> bool:
    """Return whether a norm computes what Llama's does."""
    return type(module).__name__ in PLAIN_NORMS


def layer_weights(block: Any, parts: LayerProjections) -> LayerWeights | None:
    """Return the weights of a layer like Llama's or Qwen3's; None if it is of another kind."""
    if not is_plain(block.input_layernorm):
        return None
    qkv, o, gate_up, down = parts.qkv, parts.output, parts.gate_up, parts.down
    if not (isinstance(qkv, FOR_KERNELS) and isinstance(o, FOR_KERNELS)):
        return None
    if not (isinstance(gate_up, FOR_KERNELS) and isinstance(down, FOR_KERNELS)):
        return None
    q_norm, k_norm = (getattr(block.self_attn, name, None) for name in ("q_norm", "k_norm"))
    return LayerWeights(
        # Tensors of their own, which hold the memory whatever becomes of the modules.
        norm=block.input_layernorm.weight.detach(),
        q_norm=q_norm and q_norm.weight.detach(), k_norm=k_norm and k_norm.weight.detach(),
        mlp_norm=block.post_attention_layernorm.weight.detach(),
        qkv=qkv.stored, o=o.stored, gate_up=gate_up.stored, down=down.stored,
    )  # fmt: skip
