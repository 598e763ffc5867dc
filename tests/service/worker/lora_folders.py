"""Random LoRA adapters as PEFT saves them, and models into whose weights they are merged."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kvstitch.service.worker.model.families import decoder_for
from kvstitch_lora.load import load_lora
from tests.service.worker.tiny import Tiny, tiny_of

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PREFIX = "base_model.model."


def write_lora(
    folder: Path,
    model: Any,
    *,
    modules: Sequence[str] = ALL,
    rank: int = 4,
    alpha: float = 12.0,
    seed: int = 1,
    size: float = 1.0,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Writes an adapter for a transformers model; `config` goes into adapter_config.json.

    Args:
        size: how far it moves the model, about as the weights themselves for 1.
    """
    random = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        own = name.rpartition(".")[2]
        if own not in modules:
            continue
        r = config.get("rank_pattern", {}).get(own, rank)
        wide, out = module.in_features, module.out_features
        a = torch.randn(r, wide, generator=random) / wide**0.5
        b = size * torch.randn(out, r, generator=random) / alpha
        tensors[f"{PREFIX}{name}.lora_A.weight"] = a.to(dtype)
        tensors[f"{PREFIX}{name}.lora_B.weight"] = b.to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    facts = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "some/base",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(modules),
        "bias": "none",
        "lora_dropout": 0.05,
        "modules_to_save": None,
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(facts))
    return folder


def merged(model: Any, folder: Path, scales: dict[str, float]) -> Tiny:
    """A copy of the model with W + scale · B · A for its weights.

    Args:
        scales: by the module's own name, worked out by hand.
    """
    whole = copy.deepcopy(model)
    tensors = load_file(folder / "adapter_model.safetensors")
    for name in [n for n in tensors if n.endswith("lora_A.weight")]:
        path = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        b = tensors[name.replace("lora_A", "lora_B")]
        module = whole.get_submodule(path)
        delta = scales[path.rpartition(".")[2]] * (b.double() @ tensors[name].double())
        module.weight.data = (module.weight.double() + delta).to(module.weight.dtype)
    return tiny_of(whole)


def with_loras(model: Any, **folders: Path) -> Tiny:
    """A copy of the model, served with these adapters."""
    decoder = decoder_for(copy.deepcopy(model))
    for name, folder in folders.items():
        load_lora(decoder, name, folder)
    return Tiny(model, decoder, None)  # type: ignore[arg-type]
