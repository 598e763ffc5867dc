"""A model's sizes and its calibration, which `kvstitch tune` writes into the data folder as
`calibration.json`; a model's folder may hold one, too. It is no part of the model's fingerprint.

    {"head_scores": {"R": [[...heads] ...layers], "R2": [[...]]}, "stable_layers": [10, 11]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from service.errors import ModelRefused
from service.shared.model_fingerprint import CALIBRATION_FILE


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of the served model and its calibration."""

    layers: int
    heads: int
    kv_heads: int
    # for each probe, `[layers, heads]` fp32, not negative, with sum 1
    head_scores: Mapping[str, Tensor] = field(default_factory=dict)
    # layers in which SamKV decides how much of a document a question needs; empty if not measured
    stable_layers: tuple[int, ...] = ()


def read_calibration(
    folder: Path, *, layers: int, heads: int, kv_heads: int, first: Path | None = None
) -> ModelFacts:
    """Return the facts of the model in `folder`; without a calibration file, its sizes alone.
    The values of the file `first` go before those of the folder's; raises ModelRefused if a file
    does not fit the model."""
    facts = ModelFacts(layers, heads, kv_heads)
    for path in (folder / CALIBRATION_FILE, first):
        if path is not None and path.exists():
            found = _read(path, layers, heads, kv_heads)
            facts = replace(
                facts,
                head_scores=found.head_scores or facts.head_scores,
                stable_layers=found.stable_layers or facts.stable_layers,
            )
    return facts


def _read(path: Path, layers: int, heads: int, kv_heads: int) -> ModelFacts:
    try:
        written = json.loads(path.read_text())
        scores = {
            name: _head_scores(rows, layers, heads)
            for name, rows in written.get("head_scores", {}).items()
        }
        stable = tuple(int(layer) for layer in written.get("stable_layers", ()))
        if any(not 0 <= layer < layers for layer in stable):
            raise ValueError(f"stable_layers {list(stable)} of a model with {layers} layers")
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelRefused(
            f"{path} is not a calibration of this model ({error}): delete it, or make it again "
            "with `kvstitch tune`",
            field="model",
        ) from error
    return ModelFacts(layers, heads, kv_heads, scores, stable)


def _head_scores(rows: Any, layers: int, heads: int) -> Tensor:
    scores = torch.tensor(rows, dtype=torch.float32)
    if tuple(scores.shape) != (layers, heads):
        raise ValueError(f"head scores of shape {tuple(scores.shape)}, not ({layers}, {heads})")
    total = scores.sum()
    if not torch.isfinite(scores).all() or bool((scores < 0).any()) or not total > 0:
        raise ValueError("head scores must be non-negative with a positive sum")
    return scores / total
