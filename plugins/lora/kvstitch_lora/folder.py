"""What a folder with a LoRA adapter holds, and why it cannot be served, seen without torch, as
the worker and `kvstitch doctor` say it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from kvstitch.service.worker.model.folder_checks import FolderFault

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MODULES = (
    *("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj"),
    *("gate_proj", "up_proj", "gate_up_proj", "down_proj"),
)
_KEY = re.compile(
    r"base_model\.model\.(model\.layers\.(?P<layer>\d+)\.(?:self_attn|mlp)\.(?P<module>\w+))"
    r"\.lora_(?P<side>[AB])\.weight"
)
# What would change the computation, by the field of adapter_config.json; each is off by default.
_NOT_SERVED = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "arrow_config": "Arrow",
    "lora_bias": "biases of LoRA modules",
    "fan_in_fan_out": "weights that are stored transposed",
    "modules_to_save": "modules that are saved as a whole",
    "target_parameters": "parameters that are no linear modules",
    "trainable_token_indices": "embeddings of single tokens",
    "layer_replication": "layers that are repeated",
    "alora_invocation_tokens": "adapters that begin at a token (aLoRA)",
}
# Others change the base model's weights, too.
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


class LoraRefused(ValueError):
    """An adapter that cannot be served; carries the fault."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}: {remedy}")
        self.fault = FolderFault(problem, remedy)


@dataclass(frozen=True)
class LoraConfig:
    """The content of adapter_config.json, as far as it matters here."""

    rank: int
    alpha: float
    rank_stabilised: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    base: str = ""

    def rank_of(self, module: str) -> int:
        """Return the rank of a module by its full name, like model.layers.0.self_attn.q_proj."""
        return int(_matching(self.ranks, module, self.rank))

    def scale_of(self, module: str) -> float:
        """Return what B·A is multiplied by."""
        alpha, rank = float(_matching(self.alphas, module, self.alpha)), self.rank_of(module)
        return alpha / (sqrt(rank) if self.rank_stabilised else rank)


@dataclass(frozen=True)
class LoraTensor:
    """A tensor of the weights by its name."""

    module: str
    layer: int
    side: str


def read_config(folder: Path) -> LoraConfig:
    """Read adapter_config.json; raises LoraRefused if it is missing or damaged, or asks for what
    is not served."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError) as error:
        raise LoraRefused(
            f"{folder} has no readable {CONFIG} ({error})", "give a folder that PEFT has saved"
        ) from error
    _check_kind(folder, config)
    try:
        return LoraConfig(
            rank=int(config["r"]),
            alpha=float(config["lora_alpha"]),
            rank_stabilised=bool(config.get("use_rslora")),
            ranks={str(k): int(v) for k, v in (config.get("rank_pattern") or {}).items()},
            alphas={str(k): float(v) for k, v in (config.get("alpha_pattern") or {}).items()},
            base=str(config.get("base_model_name_or_path") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{CONFIG} of {folder} is damaged ({error!r})"
        raise LoraRefused(problem, "copy it again") from error


def tensor_names(folder: Path) -> dict[str, LoraTensor]:
    """Return the tensors of the weights by their names in the file; raises LoraRefused if it is
    missing or damaged, or changes modules that are not served."""
    file = folder / WEIGHTS
    if not file.is_file():
        raise LoraRefused(
            f"{folder} lacks {WEIGHTS}", "save the adapter with safe_serialization=True"
        )
    try:
        with safe_open(file, "np") as opened:
            names = sorted(opened.keys())
    except (SafetensorError, OSError) as error:
        raise LoraRefused(f"{file} is damaged: {error}", "copy the file again") from error
    found = {name: _tensor(file, name) for name in names}
    sides: dict[str, set[str]] = {}
    for tensor in found.values():
        sides.setdefault(tensor.module, set()).add(tensor.side)
    if half := sorted(module for module, have in sides.items() if len(have) < 2):
        raise LoraRefused(f"{file} has only one matrix of {half[0]}", "copy the file again")
    if not found:
        raise LoraRefused(f"{file} holds no LoRA weights", "save the adapter again")
    return found


def examine(folder: Path) -> str | FolderFault:
    """Return what an adapter is, or what is wrong with its folder."""
    try:
        config, tensors = read_config(folder), tensor_names(folder)
    except LoraRefused as error:
        return error.fault
    modules = sorted({tensor.module.rpartition(".")[2] for tensor in tensors.values()})
    return f"rank {config.rank}, {', '.join(modules)}"


def _check_kind(folder: Path, config: dict[str, Any]) -> None:
    retrain = "train a plain LoRA adapter, or merge it into the model"
    kind = config.get("peft_type")
    if kind != "LORA":
        raise LoraRefused(f"{folder} is a PEFT adapter of type {kind}, not LORA", retrain)
    for name, what in _NOT_SERVED.items():
        if config.get(name):
            raise LoraRefused(f"{folder} has {name}: {what} cannot be served", retrain)
    if (bias := config.get("bias", "none")) != "none":
        raise LoraRefused(f"{folder} has bias {bias!r}: trained biases cannot be served", retrain)
    if (start := config.get("init_lora_weights", True)) not in _PLAIN_STARTS:
        raise LoraRefused(
            f"{folder} has init_lora_weights {start!r}, which changes the base model, too",
            "save it with PEFT's path_initial_model_for_weight_conversion, which makes it plain",
        )


def _tensor(file: Path, name: str) -> LoraTensor:
    match = _KEY.fullmatch(name)
    if match is None or match["module"] not in MODULES:
        raise LoraRefused(
            f"{file} changes {name}, which is not served",
            f"train an adapter for some of {', '.join(MODULES)}",
        )
    return LoraTensor(match[1], int(match["layer"]), match["side"])


def _matching(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """Return the value of the first pattern that matches the end of a module's name, as PEFT
    does."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default
