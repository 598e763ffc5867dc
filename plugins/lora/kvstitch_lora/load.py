"""Reads LoRA adapters for a decoder that is loaded, and checks that it computes with them what
transformers computes."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from kvstitch.service.errors import ModelRefused
from kvstitch.service.messages.replies import LoraInfo
from kvstitch.service.worker.forward.chunk_prefill import ScratchKV
from kvstitch.service.worker.forward.prefill import prefill
from kvstitch.service.worker.forward.selfcheck import random_ids
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.lora_projection import Lora, LoraUpdate, ModuleUpdate
from kvstitch.service.worker.steps import run
from kvstitch_lora.folder import (
    WEIGHTS,
    LoraConfig,
    LoraRefused,
    read_config,
    tensor_names,
)

log = logging.getLogger("kvstitch.lora")

# The linear modules of every projection in the order in which their outputs stand in it. A family
# has those of one of the lines.
_PROJECTIONS: Mapping[str, Sequence[Sequence[str]]] = {
    "qkv": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("self_attn.qkv_proj",)),
    "output": (("self_attn.o_proj",),),
    "gate_up": (("mlp.gate_proj", "mlp.up_proj"), ("mlp.gate_up_proj",)),
    "down": (("mlp.down_proj",),),
}


@dataclass(frozen=True)
class _Place:
    """Where a linear module is computed."""

    projection: str
    first: int
    width: int


@dataclass(frozen=True)
class LoraMatrices:
    """The weights of an adapter for one module, as they are in the file: B·A·x times `scale`."""

    layer: int
    a: Tensor
    b: Tensor
    scale: float


def load_lora(decoder: DecoderModel, name: str, folder: Path) -> None:
    """Give the decoder the adapter in `folder`, in its dtype and on its device; raises as
    `lora_matrices`."""
    matrices = lora_matrices(decoder.model, name, folder)
    info = LoraInfo(
        name=name,
        fingerprint=_fingerprint(matrices),
        rank=max(len(each.a) for each in matrices.values()),
        modules=sorted({module.rpartition(".")[2] for module in matrices}),
    )
    decoder.loras[name] = Lora(info, _layers(decoder, matrices))


def lora_matrices(model: Any, name: str, folder: Path) -> dict[str, LoraMatrices]:
    """Read an adapter's weights by the modules' full names; raises ModelRefused, with what to
    do, if it cannot be served with this model."""
    try:
        config = read_config(folder)
        matrices = read_matrices(folder, config)
        _check_modules(model, folder, matrices)
    except LoraRefused as error:
        raise ModelRefused(f"LoRA adapter {name}: {error}", field="lora") from error
    own = str(getattr(model.config, "_name_or_path", "")).rstrip("/").rpartition("/")[2]
    if config.base and own and config.base.rstrip("/").rpartition("/")[2] != own:
        log.warning("LoRA adapter %s was trained with %s, the model is %s", name, config.base, own)
    return matrices


def read_matrices(folder: Path, config: LoraConfig) -> dict[str, LoraMatrices]:
    """Return the adapter's weights by the module's full name, in the file's dtype."""
    names = tensor_names(folder)
    tensors = load_file(folder / WEIGHTS)
    sides = {(tensor.module, tensor.side): tensors[name] for name, tensor in names.items()}
    found: dict[str, LoraMatrices] = {}
    for tensor in names.values():
        module, rank = tensor.module, config.rank_of(tensor.module)
        a, b = sides[module, "A"], sides[module, "B"]
        if a.dim() != 2 or b.dim() != 2 or len(a) != rank or b.shape[1] != rank:
            raise LoraRefused(
                f"{folder / WEIGHTS} has {module} as {tuple(b.shape)} · {tuple(a.shape)}, and the "
                f"config says rank {rank}",
                "copy the folder again",
            )
        found[module] = LoraMatrices(tensor.layer, a, b, config.scale_of(module))
    return found


def _check_modules(model: Any, folder: Path, matrices: Mapping[str, LoraMatrices]) -> None:
    """Raise LoraRefused unless the model has all modules that the adapter changes, in its sizes."""
    modules = dict(model.named_modules())
    remedy = "give the model that it was trained with"
    for name, own in matrices.items():
        if (module := modules.get(name)) is None:
            raise LoraRefused(f"{folder} changes {name}, which this model does not have", remedy)
        wanted = (module.out_features, module.in_features)
        if (len(own.b), own.a.shape[1]) != wanted:
            raise LoraRefused(
                f"{folder} has {name} for a module of {(len(own.b), own.a.shape[1])}, this "
                f"model's is {wanted}",
                remedy,
            )


def _layers(
    decoder: DecoderModel, matrices: Mapping[str, LoraMatrices]
) -> list[dict[str, LoraUpdate]]:
    parts: list[dict[str, list[ModuleUpdate]]] = [{} for _ in range(decoder.layers)]
    widths: dict[str, int] = {}
    places = [_places(block) for block in decoder.blocks]
    for module, own in matrices.items():
        place = places[own.layer][".".join(module.split(".")[-2:])]
        a, b = own.a, own.b.float() * own.scale
        update = ModuleUpdate(
            a.to(decoder.device, decoder.dtype), b.to(decoder.device, decoder.dtype), place.first
        )
        parts[own.layer].setdefault(place.projection, []).append(update)
        widths[place.projection] = place.width
    return [
        {name: LoraUpdate.of(own, widths[name]) for name, own in each.items()} for each in parts
    ]


def _places(block: Any) -> dict[str, _Place]:
    """Return the places of a layer's modules by the module's name in the layer."""
    found: dict[str, _Place] = {}
    for projection, lines in _PROJECTIONS.items():
        for line in lines:
            modules = [_module(block, name) for name in line]
            if None in modules:
                continue
            sizes = [module.weight.shape[0] for module in modules]  # of the part that is here
            for name, first in zip(line, accumulate(sizes, initial=0), strict=False):
                found[name] = _Place(projection, first, sum(sizes))
    return found


def _module(block: Any, name: str) -> Any:
    """Return a linear module of a layer by its name in the layer; None if there is none."""
    group, _, own = name.partition(".")
    return getattr(getattr(block, group), own, None)


def _fingerprint(matrices: Mapping[str, LoraMatrices]) -> str:
    """Return 32 hex characters over all weights and scales."""
    digest = hashlib.blake2b(digest_size=16)
    for module in sorted(matrices):
        own = matrices[module]
        digest.update(f"{module} {own.scale!r}\0".encode())
        for tensor in (own.a, own.b):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\0".encode())
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


LORA_PROBE = 37  # tokens
# Of what the adapter changes in the logits, so much may be missing. A forgotten scale of
# alpha / rank = 2 is about a half.
MISSING_SHARE = 0.1
# Besides it, rounding: of the base model's logits, as measured on the same prompt, and of fp32.
ROUNDING = 4.0
FLOOR = 1e-5


def add_lora(decoder: DecoderModel, name: str, folder: Path) -> tuple[float, float]:
    """Give the decoder the LoRA adapter in `folder`, and check it; raises ModelRefused, with
    what to do."""
    load_lora(decoder, name, folder)
    return check_lora(decoder, name, lora_logits(decoder.model, name, folder))


@torch.inference_mode()
def lora_logits(model: Any, name: str, folder: Path) -> tuple[Tensor, Tensor]:
    """Return the last logits of a probe prompt by transformers, without and with an adapter,
    whose weights as stored are added by hooks: that shares nothing with how the decoder does it."""
    ids = torch.tensor([random_ids(model.config, LORA_PROBE)], device=model.device)
    base = model(ids).logits[0, -1].float()
    with added(model, lora_matrices(model, name, folder)):
        return _centred(base), _centred(model(ids).logits[0, -1].float())


@torch.inference_mode()
def check_lora(
    decoder: DecoderModel, name: str, theirs: tuple[Tensor, Tensor]
) -> tuple[float, float]:
    """Check that the decoder adds what a LoRA adapter's folder says."""
    base, adapted = (logits.to(decoder.device) for logits in theirs)
    ids = random_ids(decoder.config, LORA_PROBE)
    rounding = (_ours(decoder, ids) - base).norm()
    off = (_ours(decoder.with_lora(name), ids) - adapted).norm()
    moved, size = (adapted - base).norm(), adapted.norm().clamp_min(1e-12)
    bound = MISSING_SHARE * moved + ROUNDING * rounding + FLOOR * size
    if not off <= bound:
        raise ModelRefused(
            f"start-up check of LoRA adapter {name} failed: full prefill differs from "
            f"transformers' forward by {off / size:.2g} (relative, at most {bound / size:.2g}); it "
            "cannot be served correctly",
            field="lora",
        )
    return float(off / size), float(moved / size)


@contextmanager
def added(model: Any, matrices: Mapping[str, LoraMatrices]) -> Iterator[None]:
    """Within it, transformers' modules compute with the adapter."""
    hooks = [
        model.get_submodule(module).register_forward_hook(_adding(own))
        for module, own in matrices.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _adding(own: LoraMatrices) -> Any:
    def hook(module: Any, inputs: tuple[Tensor], out: Tensor) -> Tensor:
        x, a, b = (each.to(out.device, torch.float32) for each in (inputs[0], own.a, own.b))
        return (out.float() + own.scale * F.linear(F.linear(x, a), b)).to(out.dtype)

    return hook


def _ours(decoder: DecoderModel, ids: list[int]) -> Tensor:
    layout = PromptLayout.of(ids, [], [], uncached=[True], device=decoder.device)
    scratch = ScratchKV(decoder, layout.tokens)
    return _centred(run(prefill(decoder, layout, [None], Vanilla(), scratch)).logits)


def _centred(logits: Tensor) -> Tensor:
    return logits - logits.mean()
