"""Every family that a .gguf may hold computes what transformers computes with its weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from kvstitch.service.errors import ModelRefused
from kvstitch.service.worker.model.supported import FAMILIES as SERVED_AS_FOLDERS
from kvstitch_gguf.gguf_checks import check
from kvstitch_gguf.gguf_config import config_of
from kvstitch_gguf.gguf_conversion import convert
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
    # Ministral is written as llama, without its windows.
    assert read == set(SERVED_AS_FOLDERS) - {"ministral"}
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


@pytest.mark.parametrize("family", ["glm4_moe_lite", "qwen3_5"])
def test_a_block_that_guesses_further_tokens_is_left_out(tmp_path: Path, family: str) -> None:
    """Files of Qwen3.5 hold one behind the model; older ones do not say which layers attend."""
    config = tiny_config(family, tied=False)
    behind = config.num_hidden_layers
    weights = write_gguf(
        tmp_path / "tiny.gguf", config, family=family,
        keys={"block_count": behind + 1, "nextn_predict_layers": 1,
              "attention.recurrent_layers": None},
        tensors={f"blk.{behind}.nextn.eh_proj.weight": np.ones((WIDTH, 2 * WIDTH), np.float32)},
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


def test_layers_that_attend_to_others_may_have_keys_that_nobody_reads(tmp_path: Path) -> None:
    family, unread = "gemma4 with embeddings of layers", np.ones((64, WIDTH), np.float32)
    config = tiny_config(family)
    weights = write_gguf(
        tmp_path / "tiny.gguf", config, family=family, tensors={"blk.4.attn_k.weight": unread}
    )
    decoder = served(tmp_path / "tiny.gguf", tmp_path / "folder")
    logits = expected(config, weights)
    assert_close("gguf gemma4", prefill_ids(decoder, PROMPT).logits, logits, 1e-4)


@pytest.mark.parametrize(("experts", "groups"), [(160, (8, 3)), (256, (8, 4)), (6, (1, 1))])
def test_groups_of_experts_that_older_files_do_not_name(
    tmp_path: Path, experts: int, groups: tuple[int, int]
) -> None:
    keys = {"expert_count": experts, "expert_group_count": None, "expert_group_used_count": None}
    write_gguf(tmp_path / "tiny.gguf", tiny_config("deepseek_v2"), keys=keys)
    header = read_header(tmp_path / "tiny.gguf")
    found = family_of(header)
    assert found is not None
    config = config_of(header, found)
    assert (config.n_group, config.topk_group) == groups
    assert config.topk_method == ("greedy" if groups == (1, 1) else "group_limited_greedy")


@pytest.mark.parametrize(
    ("family", "keys", "message"),
    [
        ("deepseek_v2", {"expert_weights_norm": True}, "expert_weights_norm to True, and False is"),
        ("deepseek_v2", {"expert_gating_func": 4}, "expert_gating_func to 4, and 1 is served"),
        ("deepseek_v3", {"attention.temperature_scale": 0.1}, r"sets deepseek2\.attention\.tem"),
        ("deepseek_v3", {"attention.kv_lora_rank": None}, r"has no deepseek2\.attention\.kv_lora"),
        ("gemma4", {"rope.dimension_count_swa": 16}, r"16 as gemma4\.rope\.dimension_count_swa of"),
    ],
)
def test_variants_that_are_computed_in_another_way(
    tmp_path: Path, family: str, keys: dict[str, Any], message: str
) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_config(family), family=family, keys=keys)
    with pytest.raises(ModelRefused, match=message):
        check(read_header(tmp_path / "tiny.gguf"))


def test_rope_factors_that_are_not_gemma_4_s(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": np.linspace(1, 7, 32, dtype=np.float32)}
    write_gguf(tmp_path / "tiny.gguf", tiny_config("gemma4"), family="gemma4", tensors=factors)
    with pytest.raises(ModelRefused, match="not Gemma 4's"):
        convert(tmp_path / "tiny.gguf", tmp_path, torch.float32)
