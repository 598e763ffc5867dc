"""The start-up check of a LoRA adapter: the decoder adds what the adapter's folder says.

transformers' own modules compute the probe prompt, and hooks add scale · B·A·x to the outputs of
the modules that the folder names, from its weights as they are stored. That shares nothing with how
the decoder fuses, scales, pads and adds, so a factor that is missing, or matrices that are swapped
or belong to another module, are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from service.errors import ModelRefused
from service.worker.forward.chunk_prefill import ScratchKV
from service.worker.forward.prefill import prefill
from service.worker.layout import PromptLayout
from service.worker.methods.fusion.vanilla import Method as Vanilla
from service.worker.model.decoder.base import DecoderModel
from service.worker.model.lora.folder import read_config
from service.worker.model.lora.load import LoraMatrices, load_lora, read_matrices
from service.worker.steps import run

PROBE = 37  # tokens
# Of what the adapter changes in the logits, so much may be missing. A forgotten scale of
# alpha / rank = 2 is about a half.
SHARE = 0.1
# Besides it, rounding: of the base model's logits, as measured on the same prompt, and of fp32.
ROUNDING = 4.0
FLOOR = 1e-5


@torch.inference_mode()
def check(decoder: DecoderModel, name: str, folder: Path) -> tuple[float, float]:
    """Runs the check.

    Returns:
        How far the logits are from transformers', and how far the adapter moves them, both relative
        to the logits.

    Raises:
        ModelRefused: they are too far from them.
    """
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, decoder.vocabulary, (PROBE,), generator=random).tolist()
    matrices = read_matrices(folder, read_config(folder))
    base = _theirs(decoder, ids)
    with added(decoder.model, matrices):
        theirs = _theirs(decoder, ids)
    rounding = (_ours(decoder, ids) - base).norm()
    off = (_ours(decoder.with_lora(name), ids) - theirs).norm()
    moved, size = (theirs - base).norm(), theirs.norm().clamp_min(1e-12)
    bound = SHARE * moved + ROUNDING * rounding + FLOOR * size
    if not off <= bound:
        raise ModelRefused(
            f"start-up check of LoRA adapter {name} failed: full prefill differs from "
            f"transformers' forward by {off / size:.2g} (relative, at most {bound / size:.2g}); it "
            "cannot be served correctly",
            field="lora",
        )
    return float(off / size), float(moved / size)


def add(decoder: DecoderModel, name: str, folder: Path) -> tuple[float, float]:
    """Reads the LoRA adapter in `folder`, gives it to the decoder and checks it.

    Returns:
        As `check`.

    Raises:
        ModelRefused: it cannot be served with this model; the message says what to do.
    """
    decoder.loras[name] = load_lora(decoder, name, folder)
    return check(decoder, name, folder)


@contextmanager
def added(model: Any, matrices: Mapping[str, LoraMatrices]) -> Iterator[None]:
    """Within it, transformers' modules compute with the adapter.

    Args:
        model: the transformers model.
        matrices: of the adapter, by the modules' full names.
    """
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


def _theirs(decoder: DecoderModel, ids: list[int]) -> Tensor:
    logits = decoder.model(torch.tensor([ids], device=decoder.device)).logits[0, -1].float()
    return _centred(logits)


def _ours(decoder: DecoderModel, ids: list[int]) -> Tensor:
    layout = PromptLayout.of(ids, [], [], uncached=[True], device=decoder.device)
    scratch = ScratchKV(decoder, layout.tokens)
    return _centred(run(prefill(decoder, layout, [None], Vanilla(), scratch)).logits)


def _centred(logits: Tensor) -> Tensor:
    return logits - logits.mean()
