"""Every family that a .gguf may hold computes what transformers computes with its weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from kvstitch.service.errors import ModelRefused
from kvstitch.service.worker.model.supported import FAMILIES as SERVED_AS_FOLDERS
from kvstitch_gguf.gguf_checks import check
from kvstitch_gguf.gguf_config import config_of
from kvstitch_gguf.gguf_families import FAMILIES as TABLE
from kvstitch_gguf.gguf_families import architectures_of, family_of
from kvstitch_gguf.gguf_file import read_header
from kvstitch_tune.prompts import prefill_ids
from tests.service.worker.tiny import assert_close
from tests_gguf.gguf_families import ALWAYS_TIED, FAMILIES
from tests_gguf.gguf_files import WIDTH, tiny_config, write_gguf
from tests_gguf.gguf_models import PROMPT, expected, served


def test_every_served_family_is_read_and_tested() -> None:
    read = {name for name in SERVED_AS_FOLDERS if architectures_of(name)}
    # Ministral is written as llama, without its windows; latent attention and Gemma 4 are not read.
    kinds = ("latent.", "gemma4.")
    unread = {name for name, place in SERVED_AS_FOLDERS.items() if place.startswith(kinds)}
    assert read == set(SERVED_AS_FOLDERS) - {"ministral"} - unread
    tested = {(about.architecture, about.config.model_type) for about in FAMILIES.values()}
    table = {(name, f.model_type) for name, families in TABLE.items() for f in families}
    assert tested == table


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(tmp_path: Path, family: str) -> None:
    """Weights are exact in float32, so logits are, and windows, scales and RoPE take part."""
    config = tiny_config(family, tied=family in (*ALWAYS_TIED, "granite", "smollm3"))
    weights = write_gguf(tmp_path / "tiny.gguf", config, Kind.F32, family=family)
    decoder = served(tmp_path / "tiny.gguf", tmp_path / "folder")
    logits = expected(config, weights)
    assert logits.std() > 0.05
    assert decoder.config.model_type == config.model_type
    assert_close(f"gguf {family}", prefill_ids(decoder, PROMPT).logits, logits, 1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3", "phi3", "olmo2"])
def test_heads_of_their_own_and_tied_ones(tmp_path: Path, family: str) -> None:
    config = tiny_config(family, tied=family in ("qwen3", "llama", "olmo2"))
    weights = write_gguf(tmp_path / "tiny.gguf", config, Kind.Q8_0, family=family)
    decoder = served(tmp_path / "tiny.gguf", tmp_path / "folder")
    logits = expected(config, weights)
    assert_close(f"gguf {family}", prefill_ids(decoder, PROMPT).logits, logits, 1e-3)


@pytest.mark.parametrize("family", ["gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe"])
def test_experts_in_mxfp4(tmp_path: Path, family: str) -> None:
    """As gpt-oss comes."""
    config = tiny_config(family, tied=False)
    weights = write_gguf(tmp_path / "tiny.gguf", config, Kind.MXFP4)
    decoder = served(tmp_path / "tiny.gguf", tmp_path / "folder")
    logits = expected(config, weights)
    assert_close(f"gguf {family}", prefill_ids(decoder, PROMPT).logits, logits, 1e-3)


@pytest.mark.parametrize(
    ("family", "layers", "scalar"),
    [("gemma2", 26, 64), ("gemma2", 46, 256 // 4), ("gemma3", 34, 64), ("gemma3", 62, 256 // 8)],
)
def test_gemma_s_27b_scales_scores_by_its_width(
    tmp_path: Path, family: str, layers: int, scalar: int
) -> None:
    """The file does not say so, and llama.cpp knows the model by its number of layers."""
    heads = WIDTH // scalar if layers in (46, 62) else 4
    config = tiny_config(family)
    sizes = {"block_count": layers, "attention.head_count": heads}
    write_gguf(tmp_path / "tiny.gguf", config, family=family, keys=sizes)
    header = read_header(tmp_path / "tiny.gguf")
    found = family_of(header)
    assert found is not None
    assert config_of(header, found).query_pre_attn_scalar == scalar


@pytest.mark.parametrize("length", [45, 300], ids=["short", "long"])
def test_phi_s_long_rope(tmp_path: Path, length: int) -> None:
    """Short factors and the scale of long contexts, up to the length that was trained first."""
    short, long = np.linspace(1, 1.5, 24), np.linspace(1, 30, 24)
    rope = {
        "rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 0.75,
        "short_factor": short.tolist(), "long_factor": long.tolist(),
        "original_max_position_embeddings": 512,
    }  # fmt: skip
    config = tiny_config(
        "phi3", rope_parameters=rope, sliding_window=None, max_position_embeddings=2048,
        original_max_position_embeddings=512,
    )  # fmt: skip
    scale = math.sqrt(1 + math.log(4) / math.log(512))
    weights = write_gguf(
        tmp_path / "tiny.gguf",
        config,
        keys={
            "rope.dimension_count": 48, "rope.scaling.attn_factor": scale,
            "attention.sliding_window": 0,
        },
        tensors={
            f"rope_factors_{name}.weight": factors.astype(np.float32)
            for name, factors in (("short", short), ("long", long))
        },
    )  # fmt: skip
    decoder = served(tmp_path / "tiny.gguf", tmp_path / "folder")
    assert decoder.max_context == 512
    prompt = (PROMPT * 8)[:length]
    logits = expected(config, weights, prompt)
    assert_close("gguf longrope", prefill_ids(decoder, prompt).logits, logits, 1e-4)


def test_a_block_that_guesses_further_tokens_is_left_out(tmp_path: Path) -> None:
    """Files of Qwen3.5 hold one behind the model; older ones do not say which layers attend."""
    config = tiny_config("qwen3_5", tied=False)
    weights = write_gguf(
        tmp_path / "tiny.gguf", config, family="qwen3_5",
        keys={"block_count": 5, "nextn_predict_layers": 1, "attention.recurrent_layers": None},
        tensors={"blk.4.nextn.eh_proj.weight": np.ones((WIDTH, 2 * WIDTH), np.float32)},
    )  # fmt: skip
    decoder = served(tmp_path / "tiny.gguf", tmp_path / "folder")
    logits = expected(config, weights)
    assert_close("gguf mtp", prefill_ids(decoder, PROMPT).logits, logits, 1e-4)


def test_experts_of_lfm2_that_are_chosen_in_another_way(tmp_path: Path) -> None:
    config = tiny_config("lfm2_moe")
    keys = {"expert_gating_func": 1}
    write_gguf(tmp_path / "tiny.gguf", config, keys=keys)
    with pytest.raises(ModelRefused, match=r"lfm2moe\.expert_gating_func to 1, and 2 is served"):
        check(read_header(tmp_path / "tiny.gguf"))
