"""What is wrong with a model folder, seen without loading it or torch, as the worker and
`kvstitch doctor` say it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from service.worker.model.supported import (
    FAMILIES,
    PARTIAL_ROTATION,
    ROPE_TYPES_UP_TO_A_LENGTH,
    STATIC_ROPE_TYPES,
    WINDOW_BY_LAYER,
    WINDOW_IN_EVERY_LAYER,
    what_instead,
    why_not_served,
)


@dataclass(frozen=True)
class FolderFault:
    """One fault of a model folder."""

    problem: str
    remedy: str


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of config.json; raises OSError or ValueError."""
    return _json_object(folder / "config.json")


def family_fault(folder: Path, config: dict[str, Any]) -> FolderFault | None:
    """Return whether the model's family is not served, and if its kind is the reason, why."""
    family = str(config.get("model_type"))
    why = why_not_served(config)
    if family in FAMILIES and why is None:
        return None
    because = f", because it {why}" if why else ""
    return FolderFault(
        f"model_type {family} of {folder} is not served{because}", what_instead(config)
    )


def rope_fault(folder: Path, config: dict[str, Any]) -> FolderFault | None:
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
