"""Checks that the decoder computes with an adapter what transformers computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch_lora.load import LoraMatrices, load_lora, lora_matrices
from service.errors import ModelRefused
from service.worker.forward.chunk_prefill import ScratchKV
from service.worker.forward.prefill import prefill
from service.worker.forward.selfcheck import random_ids
from service.worker.layout import PromptLayout
from service.worker.methods.fusion.vanilla import Method as Vanilla
from service.worker.model.decoder import DecoderModel
from service.worker.steps import run

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
