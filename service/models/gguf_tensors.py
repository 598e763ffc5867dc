"""Reads weights of a GGUF file, and puts them into transformers' names and layout."""

from __future__ import annotations

import re
from functools import partial

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from service.errors import ModelRefused
from service.models.gguf_families import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, GgufFamily
from service.models.gguf_file import GgufHeader, GgufTensor

# Weights that transformers holds of all experts at once, and where they are in a layer.
_EXPERTS = {
    "mlp.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "mlp.experts.gate_up_proj_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
    "mlp.experts.down_proj": ("ffn_down_exps.weight",),
    "mlp.experts.down_proj_bias": ("ffn_down_exps.bias",),
}
_NO_WEIGHTS = {ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS}
_VARIANT = "it is a variant that is not served, give the model's own folder"
_NAMED = 3  # tensors that a refusal names


def read_tensor(header: GgufHeader, tensor: GgufTensor) -> NDArray[np.float32]:
    """Return a tensor of the file in float32."""
    kind = gguf.GGMLQuantizationType(tensor.kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    stored = np.memmap(
        header.path, np.uint8, "c", header.data_start + tensor.offset,
        shape=(*tensor.shape[:-1], tensor.shape[-1] // block * size),
    )  # fmt: skip
    values: NDArray[np.float32] = gguf.dequantize(stored, kind)
    return values


def weights_of(
    header: GgufHeader, family: GgufFamily, model: PreTrainedModel, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return all weights of a model by their names in transformers."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        shapes.pop("lm_head.weight")
    places = _places(header, list(shapes), model.config.num_hidden_layers)
    stored = {tensor.name: tensor for tensor in header.tensors}
    wanted = {place for several in places.values() for place in several}
    kind = f"a {type(model).__name__}"
    if missing := sorted(wanted - set(stored)):
        raise ModelRefused(f"{header.path} lacks weights of {kind}: {_some(missing)}: {_VARIANT}")
    if extra := sorted(set(stored) - wanted - _NO_WEIGHTS):
        raise ModelRefused(
            f"{header.path} holds weights that {kind} does not have: {_some(extra)}: {_VARIANT}"
        )
    head_dim = getattr(model.config, "head_dim", None) or (
        model.config.hidden_size // model.config.num_attention_heads
    )
    layout = partial(_as_transformers, family, head_dim=head_dim)
    found = {}
    for name, shape in shapes.items():
        parts = [torch.from_numpy(read_tensor(header, stored[place])) for place in places[name]]
        weight = layout(name, parts)
        if weight.squeeze().shape != torch.Size(n for n in shape if n != 1):
            raise ModelRefused(
                f"{places[name][0]} of {header.path} has the shape {tuple(weight.shape)}, and "
                f"{kind} has {tuple(shape)}: {_VARIANT}"
            )
        found[name] = weight.reshape(shape).to(dtype, copy=True).contiguous()
    return found


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _places(header: GgufHeader, names: list[str], layers: int) -> dict[str, tuple[str, ...]]:
    """Return the tensors of the file that weights of transformers are made of."""
    architecture = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == header.architecture)
    known = gguf.get_tensor_name_map(architecture, layers)
    found = {}
    for name in names:
        _, _, module = name.partition("layers.")
        layer, _, within = module.partition(".")
        if within in _EXPERTS:
            found[name] = tuple(f"blk.{layer}.{place}" for place in _EXPERTS[within])
            continue
        module, kind = re.fullmatch(r"(.+?)(\.weight|\.bias)?", name).groups()  # type: ignore[union-attr]
        place = known.get_name(module) or ("output" if module == "lm_head" else name)
        found[name] = (place + (kind or ".weight"),)
    return found


def _as_transformers(
    family: GgufFamily, name: str, parts: list[Tensor], *, head_dim: int
) -> Tensor:
    """Return a weight as transformers holds it, of the tensors that llama.cpp made of it."""
    if "mlp.experts." in name:
        return _experts(parts) if not family.alternates else _alternating_experts(parts)
    (weight,) = parts
    if family.norm_offset and name.endswith("norm.weight"):
        return weight - family.norm_offset
    if family.turns_pairs and re.search(r"\.[qk]_proj\.", name):
        # rows (head, i, half) → (head, half, i)
        pairs = weight.reshape(-1, head_dim // 2, 2, *weight.shape[1:])
        return pairs.transpose(1, 2).reshape(weight.shape)
    return weight


def _experts(parts: list[Tensor]) -> Tensor:
    """Return experts' weights `[experts, out, in]`, the gates' rows before those of `up`."""
    return torch.cat(parts, dim=1)


def _alternating_experts(parts: list[Tensor]) -> Tensor:
    """Return experts' weights `[experts, in, out]` or biases `[experts, out]`, a row of `up` behind
    every gate's."""
    rows = torch.stack(parts, dim=2).flatten(1, 2)
    return rows.transpose(1, 2) if rows.ndim > 2 else rows
