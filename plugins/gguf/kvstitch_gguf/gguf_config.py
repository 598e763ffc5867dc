"""Makes transformers' config of a GGUF file's header, and puts its weights into transformers'
layout."""

from __future__ import annotations

import re
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kvstitch.service.errors import ModelRefused
from kvstitch_gguf.gguf_checks import MAGNITUDE, YARN, scaling_type
from kvstitch_gguf.gguf_families import (
    KEYS,
    LOCAL_BASE,
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    WINDOW,
    WINDOW_PATTERN,
    GgufFamily,
)
from kvstitch_gguf.gguf_file import GgufHeader, GgufTensor
from kvstitch_gguf.gguf_hybrids import facts_of, gemma4_facts, latent_facts
from kvstitch_gguf.gguf_layouts import as_transformers

_DEFAULT_THETA = 10_000.0  # llama.cpp's, where a file does not say it
# Llama 3.1 and 3.2, whose factors llama.cpp stores without saying how they were made.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8192}  # fmt: skip
_TOKENS = {"bos_token_id": "bos_token_id", "pad_token_id": "padding_token_id"}
_STILL = 1e20  # a factor of RoPE with which a dimension does not turn
_SAME_FACTOR = 1e-3  # relative; factors are stored as float32


def config_of(header: GgufHeader, family: GgufFamily) -> Any:
    """Return the config of the model in a file that has passed the checks."""
    names = {tensor.name: tensor for tensor in header.tensors}
    if "token_embd.weight" not in names:
        raise ModelRefused(f"{header.path} lacks token_embd.weight: copy or download it again")
    keys = {**KEYS, **family.keys}
    facts = {
        **{field: v for key, field in keys.items() if (v := header.get(key)) is not None},
        **{field: True for field, tensor in family.switches.items() if tensor in names},
        **family.fixed,
        **{name: header.metadata.get(f"tokenizer.ggml.{key}") for name, key in _TOKENS.items()},
        "vocab_size": names["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in names,
    }
    head_dim = _head_dim(header, family)
    if family.window_period:
        facts["layer_types"] = _layer_types(header, family)
        facts["sliding_window"] = header.get(WINDOW) or None
    elif not header.get(WINDOW):
        facts.pop("sliding_window", None)  # 0: none
    if family.scaled_by_width:
        wide = header.get("block_count") == family.scaled_by_width
        heads, width = header.get("attention.head_count"), header.get("embedding_length")
        facts["query_pre_attn_scalar"] = width // heads if wide else head_dim
    if family.rotates_part and not family.hybrid:
        facts["original_max_position_embeddings"] = _original_context(header)
    try:
        if family.hybrid:
            facts |= facts_of(header, family.model_type)
        if family.latent:
            facts |= latent_facts(header, family.model_type)
        if family.local_heads:
            facts |= gemma4_facts(header, facts["layer_types"])
        plain = AutoConfig.for_model(family.model_type, **facts)
        if header.get("attention.key_length") or hasattr(plain, "head_dim"):
            facts["head_dim"] = head_dim  # some configs have one model's as their default
        facts["rope_parameters"] = _rope(header, family, head_dim)
        return AutoConfig.for_model(family.model_type, **facts)
    except ModelRefused:
        raise
    except Exception as error:  # whatever a damaged header makes of a config
        raise ModelRefused(
            f"{header.path} describes no {family.models} that transformers knows: {error}"
        ) from error


def _head_dim(header: GgufHeader, family: GgufFamily) -> int:
    """Return a head's width: of latent attention that of its rotated part, of Gemma 4 that of
    layers with a window."""
    said = header.get("rope.dimension_count" if family.latent else "attention.key_length_swa")
    said = said or header.get("attention.key_length")
    return int(said or header.get("embedding_length") // header.get("attention.head_count"))


def _layer_types(header: GgufHeader, family: GgufFamily) -> list[str]:
    """Return the kind of every layer."""
    layers, pattern = header.get("block_count"), header.get(WINDOW_PATTERN, family.window_period)
    slides = pattern
    if isinstance(pattern, int):
        slides = [bool((layer + 1) % pattern) if pattern else True for layer in range(layers)]
    if not header.get(WINDOW):
        slides = [False] * layers
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


def _original_context(header: GgufHeader) -> int:
    """Return the length that the model was trained for before it was stretched."""
    said = header.get("rope.scaling.original_context_length")
    return int(said or header.get("context_length"))


def _rope(header: GgufHeader, family: GgufFamily, head_dim: int) -> dict[str, Any]:
    """Return `rope_parameters`."""
    theta = float(header.get("rope.freq_base", _DEFAULT_THETA))
    stretched = _share(header) if family.local_heads else _scaling(header, family, head_dim)
    whole = {"rope_theta": theta, "rope_type": "default", **stretched}
    if family.rotates_part:
        whole["partial_rotary_factor"] = header.get("rope.dimension_count", head_dim) / head_dim
    if not family.ropes_by_layer:
        return whole
    local = float(header.get(LOCAL_BASE) or family.local_theta or theta)
    return {
        "full_attention": whole,
        "sliding_attention": {"rope_theta": local, "rope_type": "default"},
    }


def _scaling(header: GgufHeader, family: GgufFamily, head_dim: int) -> dict[str, Any]:
    """Return the part of `rope_parameters` that stretches the context; empty for most models."""
    if any(tensor.name == ROPE_FACTORS for tensor in header.tensors):
        return _llama3_scaling(header, head_dim)
    kind = scaling_type(header)
    if kind == "none":
        return {}
    if kind == "longrope":
        return {
            "rope_type": kind,
            "short_factor": _factors(header, SHORT_FACTORS),
            "long_factor": _factors(header, LONG_FACTORS),
            "original_max_position_embeddings": _original_context(header),
            **_said(header, {"attn_factor": "attention_factor"}),
        }
    scaling = {"rope_type": kind, "factor": float(header.get("rope.scaling.factor", 1.0))}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = _original_context(header)
        scaling |= {**_said(header, YARN), **family.yarn}
        if (magnitude := header.get(MAGNITUDE)) is not None:  # a tenth of it, and of mscale
            scaling |= dict.fromkeys(("mscale", "mscale_all_dim"), round(10 * magnitude, 5))
    return scaling


def _share(header: GgufHeader) -> dict[str, Any]:
    """Return the share of a head that Gemma 4 rotates: factors of the others stand them still."""
    factors = np.array(_factors(header, ROPE_FACTORS))
    turned = int((factors == 1).sum())
    if turned == 0 or (factors[:turned] != 1).any() or (factors[turned:] < _STILL).any():
        raise ModelRefused(
            f"{header.path} stretches RoPE by factors that are not Gemma 4's: give the model's "
            "own folder"
        )
    return {"rope_type": "proportional", "partial_rotary_factor": turned / len(factors)}


def _said(header: GgufHeader, keys: dict[str, str]) -> dict[str, float]:
    """Return those parts of `rope.scaling.` that the file has, by transformers' names."""
    found = {name: header.get(f"rope.scaling.{key}") for key, name in keys.items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def _factors(header: GgufHeader, name: str) -> list[float]:
    tensor = next((tensor for tensor in header.tensors if tensor.name == name), None)
    if tensor is None:
        raise ModelRefused(f"{header.path} lacks {name}: copy or download it again")
    return [float(factor) for factor in read_tensor(header, tensor).flatten()]


def _llama3_scaling(header: GgufHeader, head_dim: int) -> dict[str, Any]:
    """llama3's parameters, if they yield the factors that the file holds."""
    factors = torch.tensor(_factors(header, ROPE_FACTORS))
    theta = float(header.get("rope.freq_base", _DEFAULT_THETA))
    scaling = {"rope_type": "llama3", "factor": round(float(factors.max()), 4), **_LLAMA3}
    stretched = AutoConfig.for_model(
        "llama", head_dim=head_dim, max_position_embeddings=header.get("context_length"),
        rope_parameters={"rope_theta": theta, **scaling},
    )  # fmt: skip
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](stretched, torch.device("cpu"))
    plain = 1.0 / theta ** (torch.arange(len(frequencies)) / len(frequencies))
    if factors.shape != frequencies.shape or not torch.allclose(
        plain / frequencies, factors, rtol=_SAME_FACTOR
    ):
        raise ModelRefused(
            f"{header.path} stretches RoPE by factors that are not Llama 3's, and does not say how "
            "they were made: give the model's own folder"
        )
    return scaling


# Weights that transformers holds of all experts at once, and where they are in a layer.
_EXPERTS = {
    "mlp.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "mlp.experts.gate_up_proj_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
    "mlp.experts.down_proj": ("ffn_down_exps.weight",),
    "mlp.experts.down_proj_bias": ("ffn_down_exps.bias",),
}
# A tensor that some files have in place of several, by the first of these.
_IN_ONE = {
    "attn_k_b.weight": "attn_kv_b.weight",
    "ffn_gate_exps.weight": "ffn_gate_up_exps.weight",
}
_NO_WEIGHTS = {ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS}
_VARIANT = "it is a variant that is not served, give the model's own folder"
_OWN_KV = ("k", "v", "k_norm")
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
    layers = model.config.num_hidden_layers
    places = _places(header, family, list(shapes), layers)
    # Blocks behind the model's guess further tokens, and nothing here asks them.
    blocks = tuple(f"blk.{layer}." for layer in range(layers, header.get("block_count")))
    stored = {t.name: t for t in header.tensors if not t.name.startswith(blocks)}
    wanted = {place for several in places.values() for place in several}
    kind = f"a {type(model).__name__}"
    if missing := sorted(wanted - set(stored)):
        raise ModelRefused(f"{header.path} lacks weights of {kind}: {_some(missing)}: {_VARIANT}")
    # Layers that attend to another one's keys need none, and some files have them all the same.
    borrows = range(layers - getattr(model.config, "num_kv_shared_layers", 0), layers)
    unread = {f"blk.{layer}.attn_{part}.weight" for layer in borrows for part in _OWN_KV}
    if extra := sorted(set(stored) - wanted - _NO_WEIGHTS - unread):
        raise ModelRefused(
            f"{header.path} holds weights that {kind} does not have: {_some(extra)}: {_VARIANT}"
        )
    head_dim, found = _head_dim(header, family), {}
    for name, shape in shapes.items():
        parts = [torch.from_numpy(read_tensor(header, stored[place])) for place in places[name]]
        weight = as_transformers(family, model.config, name, parts, head_dim=head_dim)
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


def _places(
    header: GgufHeader, family: GgufFamily, names: list[str], layers: int
) -> dict[str, tuple[str, ...]]:
    """Return the tensors of the file that weights of transformers are made of."""
    architecture = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == header.architecture)
    known = gguf.get_tensor_name_map(architecture, layers)
    stored, found = {tensor.name for tensor in header.tensors}, {}
    for name in names:
        _, _, module = name.partition("layers.")
        layer, _, within = module.partition(".")
        if own := {**_EXPERTS, **family.places}.get(within):
            found[name] = tuple(f"blk.{layer}.{place}" for place in own)
            whole = f"blk.{layer}.{_IN_ONE.get(own[0])}"
            if whole in stored and not family.alternates:
                found[name] = (whole,)
            continue
        module, kind = re.fullmatch(r"(.+?)(\.weight|\.bias)?", name).groups()  # type: ignore[union-attr]
        place = known.get_name(module) or ("output" if module == "lm_head" else name)
        found[name] = (place + (kind or ".weight"),)
    return found
