"""What `headkv` and `samkv` need to know of a model, measured within a time limit.

Finds the layers in which SamKV should decide what a question needs
(plugins/methods/specification.md §1.7, P7, N*).

In every document, the block whose decay alpha ranks best on average over layers is the one that
stays important. A layer recognises it well if the block's alpha is far below the others' there.
Layers are ordered by how often it is a low outlier (3 standard deviations, which takes more than
ten blocks), then by how many standard deviations below the mean it is on average. The best eighth
of the layers is taken.

Writes fields into a calibration file, where other fields stay.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvstitch.service.errors import PromptTooLong
from kvstitch.service.worker.api import DecoderModel
from kvstitch.service.worker.methods.api import ModelFacts
from kvstitch_methods.samkv.selection import OUTLIER_SIGMAS
from kvstitch_tune.head_scores import Probe, Prober, calibrate
from kvstitch_tune.prompts import compute_sketch

MOST_PROBES = 16
LEAST_ANSWERED = 4
"""Head scores of fewer answered probes are not used."""
PROBE_TOKENS = 500
MOST_DOCUMENTS = 8
LEAST_BLOCKS = 4
"""A document with fewer blocks has no middle block to compare."""
DOCUMENT_TOKENS = (LEAST_BLOCKS * 64, 1024)
"""Least and most tokens of a text whose layers are looked at; shorter passages are joined."""


@dataclass(frozen=True)
class ModelCalibration:
    """What was measured of a model."""

    head_scores: dict[str, list[list[float]]] = field(default_factory=dict)
    stable_layers: list[int] = field(default_factory=list)
    probes: int = 0
    answered: dict[str, int] = field(default_factory=dict)
    documents: int = 0

    @property
    def fields(self) -> dict[str, Any]:
        """Of calibration.json; what could not be measured is left out, so that it stays there."""
        heads = {"head_scores": self.head_scores} if self.head_scores else {}
        layers = {"stable_layers": self.stable_layers} if self.stable_layers else {}
        return {**heads, **layers}

    def facts(self, before: ModelFacts) -> ModelFacts:
        """`before` with what was measured."""
        scores = {name: torch.tensor(rows) for name, rows in self.head_scores.items()}
        return replace(
            before,
            head_scores=scores or before.head_scores,
            stable_layers=tuple(self.stable_layers) or before.stable_layers,
        )


def measured(
    path: Path,
    decoder: DecoderModel,
    folder: Path,
    texts: Sequence[str],
    *,
    seed: int,
    time_is_up: Callable[[], bool],
) -> ModelCalibration:
    """Return the calibration in `path`, measured and written there if it is not there yet."""
    if path.is_file():
        return ModelCalibration(**json.loads(path.read_text(encoding="utf-8")))
    found = replace(
        _heads(decoder, folder, seed, time_is_up), **_layers(decoder, folder, texts, time_is_up)
    )
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(found)) + "\n", encoding="utf-8")
    os.replace(part, path)
    return found


def _heads(
    decoder: DecoderModel, folder: Path, seed: int, time_is_up: Callable[[], bool]
) -> ModelCalibration:
    prober = Prober(folder, tokens=min(PROBE_TOKENS, decoder.max_context // 2))

    def probes() -> Iterator[Probe]:
        for number in range(MOST_PROBES):
            if time_is_up():
                return
            yield prober.needle(random.Random(f"{seed} needle {number}"))

    try:
        scores = calibrate(
            decoder,
            probes(),
            encode=prober.tokenizer.encode_text,
            decode=lambda ids: prober.stops(prober.tokenizer.decode(ids)),
        )
    except PromptTooLong:  # a model with a very short context
        return ModelCalibration()
    answered = {name: tally.answered for name, tally in scores.tallies.items()}
    enough = bool(answered) and min(answered.values()) >= LEAST_ANSWERED
    found = scores.head_scores if enough and set(scores.head_scores) == set(answered) else {}
    return ModelCalibration(head_scores=found, probes=scores.probes, answered=answered)


def _layers(
    decoder: DecoderModel, folder: Path, texts: Sequence[str], time_is_up: Callable[[], bool]
) -> dict[str, Any]:
    encode = Prober(folder).tokenizer.encode_text
    least, most = DOCUMENT_TOKENS
    texts = () if decoder.mixers else texts  # SamKV does not run where layers keep a state
    found, ids = list[Tensor](), list[int]()
    for text in texts:
        if time_is_up() or len(found) == MOST_DOCUMENTS:
            break
        ids += encode(text)
        if len(ids) >= least:
            longest = min(most, decoder.max_context)
            found.append(deviations(decay_of(decoder, ids[:longest])))
            ids = []
    layers = list(stable_layers(found, decoder.layers)) if found else []
    return {"stable_layers": layers, "documents": len(found)}


def deviations(alpha: Tensor) -> Tensor:
    """Return how many standard deviations the best block's alpha is below its layer's mean.

    The best block has the lowest mean rank over layers.
    """
    scored = alpha.isfinite().all(0)
    alpha = alpha[:, scored].double()
    order = alpha.sort(dim=1, stable=True).indices
    ranks = order.argsort(dim=1).double()
    best = int(ranks.mean(0).argmin())
    spread = alpha.std(1, correction=0).clamp(min=1e-12)
    return (alpha.mean(1) - alpha[:, best]) / spread


def stable_layers(found: Sequence[Tensor], layers: int) -> tuple[int, ...]:
    """The best eighth of the layers (at least one), ascending, from the documents' deviations."""
    stacked = torch.stack(list(found))
    outliers = (stacked > OUTLIER_SIGMAS).double().sum(0)
    mean = stacked.mean(0)
    order = sorted(range(layers), key=lambda n: (-float(outliers[n]), -float(mean[n]), n))
    return tuple(sorted(order[: math.ceil(layers / 8)]))


@torch.inference_mode()
def decay_of(decoder: DecoderModel, ids: Sequence[int]) -> Tensor:
    """Decay alpha `[layers, blocks]` of one document that is prefilled by itself."""
    return compute_sketch(decoder, ids).alpha.cpu()


def merge(path: Path, **fields: Any) -> Path:
    """Writes fields to `path`, atomically; returns the path.

    Other fields stay, unless the file is not a JSON object, or says that it is another model's.
    """
    try:
        before = dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        before = {}
    if "model" in fields and before.get("model", fields["model"]) != fields["model"]:
        before = {}
    part = path.with_suffix(".part")
    part.write_text(json.dumps({**before, **fields}, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
    return path
