"""A served .gguf computes what transformers computes with the weights that the file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from kvstitch_tune.prompts import prefill_ids
from tests.service.worker.tiny import assert_close
from tests_gguf.gguf_files import CAN_BE_WRITTEN, ONLY_READ, tiny_config, write_gguf
from tests_gguf.gguf_models import PROMPT, expected, served

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=kind.name, marks=[pytest.mark.slow] * (kind == Kind.NVFP4))
        for kind in (*CAN_BE_WRITTEN, *ONLY_READ)
    ],
)
def test_every_quantisation_that_transformers_reads(tmp_path: Path, kind: Kind) -> None:
    config = tiny_config("llama")
    weights = write_gguf(tmp_path / "tiny.gguf", config, kind)
    decoder = served(tmp_path / "tiny.gguf", tmp_path / "folder")
    logits = expected(config, weights)
    assert logits.std() > 0.1
    assert_close(f"gguf {kind.name}", prefill_ids(decoder, PROMPT).logits, logits, 1e-3)


def test_a_file_that_calls_itself_mistral_is_the_llama_that_it_is(tmp_path: Path) -> None:
    config = tiny_config("llama")
    weights = write_gguf(tmp_path / "tiny.gguf", config, name="mistral")
    decoder = served(tmp_path / "tiny.gguf", tmp_path / "folder")
    logits = expected(config, weights)
    assert_close("gguf mistral", prefill_ids(decoder, PROMPT).logits, logits, 1e-3)


def test_bfloat16_rounds_once(tmp_path: Path) -> None:
    """The folder holds each weight rounded, nothing else."""
    config = tiny_config("llama")
    weights = write_gguf(tmp_path / "tiny.gguf", config, Kind.F32)
    decoder = served(tmp_path / "tiny.gguf", tmp_path / "folder", torch.bfloat16)
    rounded = {name: weight.bfloat16().float() for name, weight in weights.items()}
    logits = expected(config, rounded)
    assert_close("gguf in bf16", prefill_ids(decoder, PROMPT).logits, logits, 1e-3)


LONG: dict[str, Any] = {"rope_theta": 500.0, "factor": 4.0}


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling_of_the_header(tmp_path: Path, kind: str) -> None:
    """transformers' loader passes over it."""
    rope = {**LONG, "rope_type": kind}
    keys: dict[str, Any] = {"rope.scaling.type": kind, "rope.scaling.factor": 4.0}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = 128
        keys["rope.scaling.original_context_length"] = 128
    config = tiny_config("qwen2", rope_parameters=rope)
    weights = write_gguf(tmp_path / "tiny.gguf", config, keys=keys)
    decoder = served(tmp_path / "tiny.gguf", tmp_path / "folder")
    logits = expected(config, weights)
    assert_close(f"gguf {kind}", prefill_ids(decoder, PROMPT).logits, logits, 1e-3)
    unscaled = {"rope_type": "default", "rope_theta": 500.0}
    plain = expected(tiny_config("qwen2", rope_parameters=unscaled), weights)
    assert (plain - logits).abs().max() > 0.01


def test_llama_3_s_rope_factors(tmp_path: Path) -> None:
    """The file holds factors, config.json the parameters that yield them."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = tiny_config("llama", rope_parameters=rope)
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / 500_000.0 ** (torch.arange(0, 64, 2) / 64)
    factors = (plain / frequencies).float().numpy()
    weights = write_gguf(tmp_path / "tiny.gguf", config, tensors={"rope_freqs.weight": factors})
    decoder = served(tmp_path / "tiny.gguf", tmp_path / "folder")
    logits = expected(config, weights)
    assert_close("gguf llama3", prefill_ids(decoder, PROMPT).logits, logits, 1e-3)
    assert decoder.config.rope_parameters == rope
