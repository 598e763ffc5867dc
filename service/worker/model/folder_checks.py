"""What is wrong with a model folder, seen without loading it. Importable without torch.

The worker asks before it loads the weights, and `kvstitch doctor` says the same sentences.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from service.worker.model.supported import (
    ROPE_TYPES_UP_TO_A_LENGTH,
    STATIC_ROPE_TYPES,
    families,
)


@dataclass(frozen=True)
class FolderFault:
    """One fault of a model folder.

    Attributes:
        problem: what is wrong, with the file's name.
        remedy: what to do.
    """

    problem: str
    remedy: str


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a JSON object.
    """
    return _json_object(folder / "config.json")


def family_fault(folder: Path, config: dict[str, Any]) -> FolderFault | None:
    """Whether the model's family is not served."""
    family = str(config.get("model_type"))
    if family in families():
        return None
    served = ", ".join(sorted(families()))
    return FolderFault(
        f"model_type {family} of {folder} is not served", f"give a model of the families {served}"
    )


def rope_fault(folder: Path, config: dict[str, Any]) -> FolderFault | None:
    """Whether the model rotates queries and keys in a way that is not served."""
    known = (*STATIC_ROPE_TYPES, *ROPE_TYPES_UP_TO_A_LENGTH)
    for parameters in _rope_parameters(config):
        kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
        if kind not in known:
            return FolderFault(
                f"rope_type {kind} of {folder} is not served",
                f"give a model with {', '.join(known)}",
            )
        part = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        if float(part or 1.0) != 1:
            return FolderFault(
                f"partial_rotary_factor {part} of {folder}: models that rotate only a part of "
                "every head are not served",
                "give a model that rotates whole heads",
            )
    return None


def _rope_parameters(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The model's RoPE, or one per kind of layer; reads both spellings."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return [p for p in parameters.values() if isinstance(p, dict)] or [parameters]


def weights_fault(folder: Path) -> FolderFault | None:
    """Whether a file of the weights is missing, cut off or damaged in its header."""
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
