"""Makes a Hugging Face folder of a GGUF file: config.json, weights, tokenizer, chat template.

    python -m service.models.gguf_conversion SOURCE FOLDER DTYPE

A process of its own, so that torch and the weights leave the memory with it. transformers'
own loader dequantises. What that loader passes over without a word (RoPE scaling, tensors that the
model does not have) is done here or refused: answers would be wrong. A fault of the file is written
to stdout as one line of JSON, {"fault": …}, with exit code 3.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from service.errors import ModelRefused
from service.models.gguf_file import ROPE_FACTORS, GgufHeader, check, read_header

REFUSED = 3
# Llama 3.1 and 3.2, whose factors llama.cpp stores without saying how they were made.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8192}  # fmt: skip
_SAME_FACTOR = 1e-3  # relative; factors are stored as float32


def convert(source: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write the model in `source` into `folder`, which exists.

    Raises:
        ModelRefused: The file cannot be served; the message says why.
    """
    header = read_header(source)
    check(header)
    config, tokenizer = _config_and_tokenizer(source)
    if config.model_type == "mistral":
        # Of a file that is called so. The loader then fails; without a window, which llama.cpp
        # does not have in this architecture, the model is a Llama.
        facts = {**config.to_dict(), "model_type": "llama"}
        facts.pop("sliding_window")
        config = AutoConfig.for_model(**facts)
    config.rope_parameters = {**config.rope_parameters, **_rope_scaling(header, config)}
    config.dtype = dtype
    if head_dim := header.get("attention.key_length"):
        config.head_dim = head_dim  # the loader leaves Qwen3's at 128
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    weights = _weights(header, model, dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _config_and_tokenizer(source: Path) -> tuple[Any, PreTrainedTokenizerFast]:
    """Return what transformers reads of the header.

    Raises:
        ModelRefused: It cannot.
    """
    # By itself in a folder: a tokenizer.json beside the file may be another model's.
    with tempfile.TemporaryDirectory() as alone:
        (Path(alone) / "model.gguf").symlink_to(source.resolve())
        place: dict[str, Any] = {"gguf_file": "model.gguf", "local_files_only": True}
        try:
            config = AutoConfig.from_pretrained(alone, **place)
            # AutoTokenizer would make the same one, after reading the file another time.
            return config, PreTrainedTokenizerFast.from_pretrained(alone, **place)
        except (ValueError, KeyError, IndexError, TypeError, OSError) as error:
            raise ModelRefused(
                f"transformers cannot read configuration or tokenizer of {source}: {error!r}"
            ) from error


def _weights(
    header: GgufHeader, model: PreTrainedModel, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return all weights of `model` by their names in transformers.

    Raises:
        ModelRefused: The file has other tensors than the model.
    """
    found: dict[str, torch.Tensor] = load_gguf_checkpoint(
        str(header.path), return_tensors=True, model_to_load=model, torch_dtype=dtype
    )["tensors"]
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        shapes.pop("lm_head.weight")
    family = type(model).__name__
    wrong = sorted(n for n in shapes if n not in found or found[n].shape != shapes[n])
    if wrong:
        raise ModelRefused(
            f"{header.path} lacks weights of a {family}, or has them in another shape: "
            f"{', '.join(wrong[:3])}"
        )
    stored = [tensor.name for tensor in header.tensors if tensor.name != ROPE_FACTORS]
    if len(stored) != len(shapes):
        raise ModelRefused(
            f"{header.path} holds {len(stored)} tensors, a {family} has {len(shapes)}: it is a "
            "variant that is not served, give the model's own folder"
        )
    return {name: found[name] for name in shapes}


def _rope_scaling(header: GgufHeader, config: Any) -> dict[str, Any]:
    """Return the part of `rope_parameters` that stretches the context; empty for most models."""
    if any(tensor.name == ROPE_FACTORS for tensor in header.tensors):
        return _llama3_scaling(header, config)
    kind = header.get("rope.scaling.type", "none")
    if kind == "none":
        return {}
    scaling = {"rope_type": kind, "factor": float(header.get("rope.scaling.factor", 1.0))}
    if kind == "yarn":
        original = header.get("rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = original or config.max_position_embeddings
    return scaling


def _llama3_scaling(header: GgufHeader, config: Any) -> dict[str, Any]:
    """llama3's parameters, if they yield the factors that the file holds.

    Raises:
        ModelRefused: They do not.
    """
    from gguf import GGUFReader

    stored = next(t for t in GGUFReader(header.path).tensors if t.name == ROPE_FACTORS)
    factors = torch.tensor(stored.data, dtype=torch.float32).flatten()
    theta = {"rope_theta": config.rope_parameters["rope_theta"]}
    scaling = {"rope_type": "llama3", "factor": round(float(factors.max()), 4), **_LLAMA3}
    stretched = type(config)(**{**config.to_dict(), "rope_parameters": {**theta, **scaling}})
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](stretched, torch.device("cpu"))
    plain = 1.0 / theta["rope_theta"] ** (torch.arange(len(frequencies)) / len(frequencies))
    if factors.shape != frequencies.shape or not torch.allclose(
        plain / frequencies, factors, rtol=_SAME_FACTOR
    ):
        raise ModelRefused(
            f"{header.path} stretches RoPE by factors that are not Llama 3's, and does not say how "
            "they were made: give the model's own folder"
        )
    return scaling


def main(source: str, folder: str, dtype: str) -> int:
    os.umask(0o077)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        convert(Path(source), Path(folder), getattr(torch, dtype))
    except ModelRefused as error:
        print(json.dumps({"fault": error.message}))
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
