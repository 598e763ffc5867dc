"""A decoder with a LoRA adapter computes what the model does with the adapter merged into it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.worker.methods.bases.fusion import FusionMethod
from kvstitch.service.worker.methods.fusion.a3 import Method as A3
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from tests.service.worker.lora_folders import ALL, merged, with_loras, write_lora
from tests.service.worker.tiny import (
    S,
    Tiny,
    assert_close,
    assert_same,
    difference,
    random_model,
    rope_of,
    tiny_config,
)

FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def adapted(tiny: Tiny, name: str) -> Tiny:
    return replace(tiny, decoder=tiny.decoder.with_lora(name), _stored={})


@pytest.mark.parametrize(
    ("family", "modules"),
    [
        ("llama", ALL),
        ("qwen3", ("q_proj", "v_proj")),
        ("phi3", FUSED),
        ("granite", ALL),
        ("olmo2", ("gate_proj", "k_proj")),
        ("mixtral", ATTENTION),
    ],
)
def test_full_prefill_is_that_of_merged_weights(
    family: str, modules: tuple[str, ...], tmp_path: Path
) -> None:
    model = random_model(tiny_config(family, rope_of(family)))
    folder = write_lora(tmp_path, model, modules=modules)
    own = with_loras(model, own=folder)
    expected = merged(model, folder, dict.fromkeys(modules, 3.0))
    ours, base = adapted(own, "own").stitch(Vanilla()), own.stitch(Vanilla())
    assert_close("LoRA against merged weights", ours.logits, expected.stitch(Vanilla()).logits)
    assert difference(ours.logits, base.logits) > 0.1
    theirs = expected.model(ours.layout.ids[None]).logits[0, -1]
    assert_close("LoRA against transformers with merged weights", ours.logits, theirs)
    # The base model computes as if there were no adapter.
    assert difference(base.logits, Tiny(model, own.decoder, None).stitch(Vanilla()).logits) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({"use_rslora": True}, {"q_proj": 6.0, "down_proj": 6.0}),
        ({"alpha_pattern": {"down_proj": 2.0}}, {"q_proj": 3.0, "down_proj": 0.5}),
        ({"rank_pattern": {"q_proj": 8}}, {"q_proj": 1.5, "down_proj": 3.0}),
    ],
)
def test_scales_follow_the_config(
    config: dict[str, Any], scales: dict[str, float], tmp_path: Path
) -> None:
    model = random_model(tiny_config("llama"))
    folder = write_lora(tmp_path, model, modules=list(scales), **config)
    ours = adapted(with_loras(model, own=folder), "own").stitch(Vanilla())
    expected = merged(model, folder, scales).stitch(Vanilla())
    assert_close("LoRA with patterns", ours.logits, expected.logits)


@pytest.mark.parametrize("method", ["pie", "a3"])
def test_stitching_is_that_of_merged_weights(method: str, tmp_path: Path) -> None:
    """Chunks, stitched prompt and repaired rows: all of one adapter, against the references."""
    model = random_model(tiny_config("qwen3", "yarn"))
    folder = write_lora(tmp_path, model)
    whole = merged(model, folder, dict.fromkeys(ALL, 3.0))
    prompt = whole.prompt(prefix=S)
    ours = adapted(with_loras(model, own=folder), "own")
    fusion: FusionMethod
    if method == "pie":
        expected, fusion = whole.reference.pie(prompt), Pie()
    else:
        expected, fusion = whole.reference.a3(prompt, 0.4), A3(ratio=0.4)
    assert_same(f"{method} with LoRA chunks", ours.stitch(fusion, prefix=S), expected)
