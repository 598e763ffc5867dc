"""What is wrong with a model folder, seen without loading it or torch, as the worker and
`kvstitch doctor` say it; also whether quantised weights, of the checkpoint or by the setting
`quantize`, can be served here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from kvstitch.service.worker.model.supported import (
    FAMILIES,
    PARTIAL_ROTATION,
    ROPE_TYPES_UP_TO_A_LENGTH,
    STATIC_ROPE_TYPES,
    TEXT_ALONE,
    WINDOW_BY_LAYER,
    WINDOW_IN_EVERY_LAYER,
    keeps_states,
    what_instead,
    why_not_served,
)


@dataclass(frozen=True)
class FolderFault:
    problem: str
    remedy: str


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of config.json, of models whose text is served alone that of the text
    model; raises OSError or ValueError."""
    config = _json_object(folder / "config.json")
    text = config.get("text_config")
    if config.get("model_type") not in TEXT_ALONE or not isinstance(text, dict):
        return config
    whole = {name: config[name] for name in _OF_ALL_PARTS if name in config}
    return {**whole, **text, "model_type": TEXT_ALONE[config["model_type"]]}


_OF_ALL_PARTS = ("dtype", "torch_dtype", "quantization_config", "compression_config")


def left_out(folder: Path) -> str:
    """Return what of a model is not served, as a sentence; empty if all is."""
    kind = _json_object(folder / "config.json").get("model_type")
    if kind not in TEXT_ALONE:
        return ""
    return f"{folder} ({kind}) reads images, too: its text model is served, without the rest"


def config_fault(
    folder: Path, config: dict[str, Any], *, device: str, quantize: str
) -> FolderFault | None:
    """Return why a model of this config.json cannot be served, None if it can."""
    return (
        family_fault(folder, config)
        or rope_fault(folder, config)
        or quantisation_fault(folder, config, device=device, quantize=quantize)
    )


def family_fault(folder: Path, config: dict[str, Any]) -> FolderFault | None:
    """Return whether the model's family is not served, and if its kind is the reason, why."""
    family = str(config.get("model_type"))
    why = why_not_served(config)
    if family in FAMILIES and why is None:
        return None
    because = f", because it {why}" if why else ""
    return FolderFault(f"model_type {family} of {folder} is not served{because}", what_instead())


def rope_fault(folder: Path | str, config: dict[str, Any]) -> FolderFault | None:
    """Return whether the model rotates queries and keys in a way that is not served."""
    known = (*STATIC_ROPE_TYPES, *ROPE_TYPES_UP_TO_A_LENGTH)
    for parameters in _rope_parameters(config):
        kind = _rope_type(parameters)
        if kind not in known:
            return FolderFault(
                f"rope_type {kind} of {folder} is not served",
                f"give a model with {', '.join(known)}",
            )
        part = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
        if float(part or 1) != 1 and config.get("model_type") not in PARTIAL_ROTATION:
            return FolderFault(
                f"partial_rotary_factor {part} of {folder}: models that rotate only a part of "
                f"every head are not served, but for {', '.join(PARTIAL_ROTATION)}",
                "give a model that rotates whole heads",
            )
    return None


def served_context(config: dict[str, Any]) -> int | None:
    """Return how many tokens of prompt and answer are served; None if the model does not say."""
    limit = config.get("max_position_embeddings")
    if limit is None:
        return None
    limits = [int(limit)]
    for parameters in _rope_parameters(config):
        if _rope_type(parameters) in ROPE_TYPES_UP_TO_A_LENGTH:
            own = config.get("original_max_position_embeddings")
            limits.append(int(parameters.get("original_max_position_embeddings") or own or limit))
    return min(limits)


def facts(config: dict[str, Any]) -> list[str]:
    """Return what `config.json` says that decides how the model is served, in words."""
    layers, window = config.get("num_hidden_layers"), _window(config)
    quantisation = config.get("quantization_config") or {}
    ropes = sorted({_rope_type(parameters) for parameters in _rope_parameters(config)})
    context, dtype = served_context(config), config.get("dtype") or config.get("torch_dtype")
    part = next(
        (p["partial_rotary_factor"] for p in (*_rope_parameters(config), config)
         if p.get("partial_rotary_factor")), 1,
    )  # fmt: skip
    return [
        str(config.get("model_type")),
        *([f"{layers} layers"] if layers else []),
        *([str(dtype)] if dtype else []),
        *([f"quantised ({quantisation.get('quant_method')})"] if quantisation else []),
        f"RoPE {' and '.join(ropes)}" + (f" on {part:.0%} of a head" if part != 1 else ""),
        *([window] if window else []),
        *([f"context {context}"] if context else []),
    ]


def kv_numbers_per_token(config: dict[str, Any]) -> int:
    """Return how many numbers a token takes in the KV pool."""
    if rank := config.get("kv_lora_rank"):
        return 2 * _attention_layers(config) * int(rank + config.get("qk_rope_head_dim", 0))
    queries = config.get("num_attention_heads", 1)
    wide = config.get("head_dim") or config.get("hidden_size", 0) // queries
    heads = config.get("num_key_value_heads") or queries
    return int(2 * _attention_layers(config) * heads * wide)


def _attention_layers(config: dict[str, Any]) -> int:
    """Return how many layers have keys and values."""
    layers = int(config.get("num_hidden_layers") or 0)
    if pattern := config.get("hybrid_override_pattern"):  # Nemotron-H
        return str(pattern).count("*")
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if kinds:
        return sum(str(kind) in _ATTENTION for kind in kinds)
    if full := config.get("full_attn_idxs"):  # LFM2
        return len(full)
    hybrid = str(config.get("model_type")).startswith(("qwen3_5", "qwen3_next"))
    return layers // int(config.get("full_attention_interval") or 4) if hybrid else layers


_ATTENTION = ("attention", "full_attention", "sliding_attention")


def _window(config: dict[str, Any]) -> str | None:
    """Return the sliding windows of the layers, where there are any."""
    window, family = config.get("sliding_window"), config.get("model_type")
    kinds = config.get("layer_types")
    if not window or not config.get("use_sliding_window", True):
        return None
    if family in WINDOW_IN_EVERY_LAYER:
        return f"windows of {window} tokens in all layers"
    if family not in WINDOW_BY_LAYER:
        return None
    if kinds is None:
        return f"windows of {window} tokens in some layers"
    sliding = sum(kind == "sliding_attention" for kind in kinds)
    return f"windows of {window} tokens in {sliding} of {len(kinds)} layers" if sliding else None


def _rope_type(parameters: dict[str, Any]) -> str:
    return str(parameters.get("rope_type") or parameters.get("type") or "default")


def _rope_parameters(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the model's RoPE, or one per kind of layer; reads both spellings."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return [p for p in parameters.values() if isinstance(p, dict)] or [parameters]


def weights_fault(folder: Path) -> FolderFault | None:
    """Return whether a file of the weights is missing, cut off or damaged in its header."""
    files = sorted(folder.glob("*.safetensors"))
    try:
        index = folder / "model.safetensors.index.json"
        wanted = set(_json_object(index)["weight_map"].values()) if index.is_file() else set()
    except (ValueError, KeyError, OSError, AttributeError) as error:
        return FolderFault(
            f"{folder}: the index of the weights is damaged ({error!r})",
            "copy the model folder again",
        )
    missing = sorted(wanted - {file.name for file in files})
    if missing or not (files or list(folder.glob("pytorch_model*.bin"))):
        what = ", ".join(missing) or "*.safetensors"
        return FolderFault(f"{folder} lacks {what}", "copy the model folder again")
    for file in files:
        try:
            with safe_open(file, "np"):
                pass
        except (SafetensorError, OSError) as error:
            return FolderFault(f"{file} is damaged: {error}", "copy the file again")
    return None


def _json_object(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


GROUP = 32
"""Columns that share a scale in int4 (`kvstitch.service.worker.kernels.cpu.weight`)."""


@dataclass(frozen=True)
class Method:
    """A library's way of quantising."""

    packages: tuple[tuple[str, str], ...]
    on_cpu: bool = True


_ACCELERATE = ("accelerate", "accelerate")
_GPTQMODEL = ("gptqmodel", "gptqmodel")
METHODS = {
    "torchao": Method((("torchao", "torchao"),)),
    "compressed-tensors": Method((("compressed_tensors", "compressed-tensors"),)),
    "gptq": Method((("optimum", "optimum"), _GPTQMODEL)),
    "awq": Method((_GPTQMODEL, _ACCELERATE)),
    "bitsandbytes": Method((("bitsandbytes", "bitsandbytes"), _ACCELERATE), on_cpu=False),
    "fp8": Method((_ACCELERATE,), on_cpu=False),
    "fbgemm_fp8": Method((("fbgemm_gpu", "fbgemm-gpu"), _ACCELERATE), on_cpu=False),
}
"""By `quant_method` of `quantization_config`."""

DEQUANTISED = "mxfp4"
"""Weights of this kind (gpt-oss) are dequantised when they are loaded, on every device."""


def quantisation_fault(
    folder: Path, config: dict[str, Any], *, device: str, quantize: str = "off"
) -> FolderFault | None:
    """Return what keeps a model's quantised weights from being served on "cpu", "cuda", "cuda:N"
    or "auto"; None if nothing does."""
    given = config.get("quantization_config") or config.get("compression_config")
    if quantize != "off":
        return _fault_of_setting(folder, config, quantize, quantised=bool(given))
    if not isinstance(given, dict):
        return None
    name = str(given.get("quant_method") or ("bitsandbytes" if _of_bitsandbytes(given) else None))
    if name == DEQUANTISED:
        return None
    method = METHODS.get(name)
    if method is None:
        # transformers would load such weights as if they were not quantised.
        return FolderFault(
            f"weights of {folder} are quantised by {name}, which is not served",
            f"give a checkpoint that is not quantised, or by {', '.join((*METHODS, DEQUANTISED))}",
        )
    if has := _kept_whole(config):
        return FolderFault(
            f"weights of {folder} are quantised by {name} and it has {has}, which is not served",
            "give the checkpoint that is not quantised",
        )
    on_cpu = _is_cpu(device)
    if on_cpu and not (method.on_cpu and "Float8" not in _torchao_type(given)):
        return FolderFault(
            f"weights of {folder} are quantised by {_torchao_type(given) or name}, which needs a "
            "GPU, and the device is a CPU",
            "give --device cuda, or the checkpoint that is not quantised with --quantize int8",
        )
    needed = method.packages if on_cpu else {*method.packages, _ACCELERATE}
    missing = sorted(package for module, package in needed if find_spec(module) is None)
    if missing:
        return FolderFault(
            f"weights of {folder} are quantised by {name}, which needs {' and '.join(missing)}",
            f"pip install {' '.join(missing)}",
        )
    return None


def _fault_of_setting(
    folder: Path, config: dict[str, Any], quantize: str, *, quantised: bool
) -> FolderFault | None:
    if quantised:
        return FolderFault(
            f"weights of {folder} are quantised already",
            "give --quantize off, or a checkpoint that is not",
        )
    if has := _kept_whole(config):
        return FolderFault(
            f"{folder} has {has}, which --quantize {quantize} does not reach",
            "give --quantize off",
        )
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    attended = heads * int(config.get("head_dim") or hidden // heads)
    widths = {"hidden_size": hidden, "intermediate_size": int(config["intermediate_size"])}
    widths["num_attention_heads * head_dim"] = attended
    odd = [f"{name} is {width}" for name, width in widths.items() if width % GROUP]
    if quantize == "int4" and odd:
        return FolderFault(
            f"--quantize int4 needs multiples of {GROUP}, and {odd[0]} in {folder}",
            "give --quantize int8",
        )
    return None


def _of_bitsandbytes(given: dict[str, Any]) -> bool:
    return bool(given.get("load_in_4bit") or given.get("load_in_8bit"))


def _torchao_type(given: dict[str, Any]) -> str:
    """Return the name of a torchao configuration, e.g. Int8WeightOnlyConfig; empty for others."""
    kind = given.get("quant_type")
    while isinstance(kind, dict) and "_type" not in kind:
        kind = next(iter(kind.values()), None)
    return str(kind["_type"] if isinstance(kind, dict) else kind or "")


def _kept_whole(config: dict[str, Any]) -> str:
    """Return what the model has whose weights are not served quantised; empty if nothing."""
    if keeps_states(config):
        return "layers that keep a state"
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return "experts" if any(config.get(name) for name in names) else ""


def _is_cpu(device: str) -> bool:
    """Return whether that is a CPU; "auto" is one where no GPU's driver is loaded."""
    if device == "auto":
        return not any(Path(driver).exists() for driver in ("/dev/nvidiactl", "/dev/dxg"))
    return device == "cpu"
