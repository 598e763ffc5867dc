"""A GGUF file as the worker serves it, and what transformers computes with its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from kvstitch.service.worker.api import load_model, start_up_check
from kvstitch_gguf.gguf_conversion import convert

PROMPT = [0, *range(5, 45), 2, 77, 3, 9]


def served(file: Path, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model as the worker loads it after conversion, which was compared with transformers."""
    folder.mkdir()
    convert(file, folder, dtype)
    decoder = load_model(str(folder), dtype="float32")
    start_up_check(decoder)
    return decoder


def expected(
    config: Any, weights: dict[str, torch.Tensor], prompt: list[int] = PROMPT
) -> torch.Tensor:
    """transformers' logits of the prompt's last token."""
    model = AutoModelForCausalLM.from_config(config).eval()
    model.load_state_dict(weights, strict=not config.tie_word_embeddings)
    with torch.no_grad():
        return model(torch.tensor([prompt])).logits[0, -1].float()
