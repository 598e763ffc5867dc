"""Quantised weights in the model's folder, so that the next start need not round them anew.

There is one file for each way of quantising. It says what it was made from, and has a digest of
what is in it; where either differs, or it cannot be written, weights are rounded as ever.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kvstitch.service.shared.model_fingerprint import fingerprint
from kvstitch.service.worker.kernels.cpu.weight import Weight
from kvstitch.service.worker.model.projection import BITS, quantise

log = logging.getLogger("kvstitch.worker")

SUFFIX = ".quantised"
"""Of its name, behind the setting `quantize`: no loader takes it for the model's own weights."""


def quantise_once(model: Any, folder: Path, method: str) -> None:
    """`quantise` a model of this folder by the setting `quantize`, on a CPU with what was kept."""
    path = folder / f"{method}{SUFFIX}"
    source = f"{fingerprint(str(folder), method)} in {model.dtype}"  # which are rounded again
    on_cpu = model.device.type == "cpu"
    kept = _read(path, source) if on_cpu else {}
    names = {name.rpartition(".")[0] for name in kept}
    found = {name: Weight(kept[f"{name}.values"], kept[f"{name}.scales"]) for name in names}
    made = quantise(model, BITS[method], found)
    if on_cpu and not kept:
        _write(path, source, made)


def _read(path: Path, source: str) -> dict[str, Tensor]:
    """Return what was written; nothing if it is not there, damaged, or not of this source."""
    try:
        with safe_open(path, framework="pt") as file:
            said, names = file.metadata(), file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError:
        return {}
    except (OSError, SafetensorError) as error:
        log.warning("%s cannot be read and is made again: %s", path, error)
        return {}
    if said == {"source": source, "digest": _digest(tensors)}:
        return tensors
    log.warning("%s is damaged, or of another revision of the model, and is made again", path)
    return {}


def _write(path: Path, source: str, weights: Mapping[str, Weight]) -> None:
    tensors = {f"{name}.values": weight.values for name, weight in weights.items()}
    tensors |= {f"{name}.scales": w.scales for name, w in weights.items() if w.scales is not None}
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        save_file(tensors, part, {"source": source, "digest": _digest(tensors)})
        part.replace(path)
    except (OSError, SafetensorError) as error:
        log.info("quantised weights cannot be kept, and every start rounds them: %s", error)
        part.unlink(missing_ok=True)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].view(torch.uint8).numpy().data)
    return digest.hexdigest()
