"""Gemma 4: heads of two shapes in one, embeddings of layers, layers that borrow KV, experts; and
the text of models that read images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForImageTextToText,
    Gemma3Config,
    Gemma4Config,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
)

from kvstitch.service.messages.requests import Method
from kvstitch.service.worker.forward import selfcheck
from kvstitch.service.worker.forward.chunk_prefill import ChunkPrefill, ScratchKV
from kvstitch.service.worker.forward.prefill import prefill
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from kvstitch.service.worker.model.addressing import Addressing
from kvstitch.service.worker.model.families import decoder_for
from kvstitch.service.worker.model.load import load
from kvstitch.service.worker.steps import run
from tests.service.worker.engine.test_engine import greedy
from tests.service.worker.engines import PIE, VANILLA, disk, rig
from tests.service.worker.tiny import D1, D2, D3, Q, S, Tiny, assert_close, random_model

pytestmark = pytest.mark.exhaustive

IDS = [*S, *D1, *D2, *D3, *Q]
SIZES: dict[str, Any] = {
    "vocab_size": 301,  # ids of more than one digit
    "vocab_size_per_layer_input": 301,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 9,
    "max_position_embeddings": 256,
    "eos_token_id": 0,
    "final_logit_softcapping": 5.0,
    "hidden_size_per_layer_input": 0,
}
KINDS = {
    "E2B": {
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 12,
        "use_double_wide_mlp": True,
    },
    "31B": {
        "num_key_value_heads": 4,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
    },
    "A4B": {
        "num_key_value_heads": 4,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "enable_moe_block": True,
        "num_experts": 5,
        "top_k_experts": 2,
        "moe_intermediate_size": 24,
    },
}


@cache
def gemma(kind: str) -> Tiny:
    model = random_model(Gemma4TextConfig(**{**SIZES, **KINDS[kind]}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.add_(1)  # which `random_model` takes from other Gemmas
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.fill_(0.9)
    return Tiny(model, decoder_for(model), None)  # type: ignore[arg-type]


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Tiny:
    return gemma(request.param)


def transformers_pie(model: Any, segments: Sequence[Sequence[int]], question: list[int]) -> Tensor:
    """Logits of the last token where no token of a segment sees another segment."""
    ids = [token for segment in segments for token in segment] + question
    number = [i for i, segment in enumerate(segments) for _ in segment] + [-1] * len(question)
    place, of = torch.arange(len(ids)), torch.tensor(number)
    seen = (place[:, None] >= place) & ((of[:, None] == of) | (of[:, None] == -1))
    near = seen & (place[:, None] - place < model.config.sliding_window)
    masks = {
        kind: torch.zeros(seen.shape).masked_fill_(~mask, float("-inf"))[None, None]
        for kind, mask in (("full_attention", seen), ("sliding_attention", near))
    }
    logits: Tensor = model(torch.tensor([ids]), attention_mask=masks).logits[0, -1]
    return logits


def test_full_prefill_is_transformers(model: Tiny) -> None:
    layout = PromptLayout.of(S, [D1, D2, D3], Q, uncached=[True] * 4)
    scratch = ScratchKV(model.decoder, layout.tokens)
    ours = run(prefill(model.decoder, layout, [None] * 4, Vanilla(), scratch)).logits
    assert_close("gemma4: transformers", ours, model.model(torch.tensor([IDS])).logits[0, -1])


def test_pie_is_transformers_with_a_mask(model: Tiny) -> None:
    addressing = Addressing(model.decoder, fingerprint="t", codec="raw")
    chunks = ChunkPrefill(model.decoder)
    for texts in ([D1, D2, D3], [D3, D1]):
        asked = [addressing.document(d, "none", S, "") for d in texts]
        stored = [run(chunks.compute(each)).chunk for each in asked]
        layout = PromptLayout.of([], texts, Q, uncached=[True, *[False] * len(texts)])
        scratch = ScratchKV(model.decoder, layout.tokens)
        ours = run(prefill(model.decoder, layout, [None, *stored], Pie(), scratch)).logits
        assert_close("gemma4: pie", ours, transformers_pie(model.model, texts, Q))


def test_answers_are_transformers_and_stored_chunks_are_read_again(
    model: Tiny, tmp_path: Path
) -> None:
    """By methods that compute some rows, too, which are exact where they compute all."""
    with rig(model, tiers=[disk(tmp_path)], draft_tokens=3) as r:
        expected = greedy(model, IDS, 8)
        assert r.answer(VANILLA, max_tokens=8)[0] == expected
        r.precompute()
        _, report = r.answer(PIE)
        assert [d.tier for d in report.documents] == ["ssd"] * 3
        for name in ("question_scout", "cacheblend"):
            assert r.answer(Method(name, {"ratio": 1.0}), max_tokens=8)[0] == expected
        assert r.answer(PIE, eviction=Method("snapkv", {"budget": 21}))[0]


def test_layers_that_borrow_store_nothing() -> None:
    decoder = gemma("E2B").decoder
    assert (decoder.layers, len(decoder.blocks), decoder.borrowed) == (4, 6, [2, 3])
    assert (decoder.kv_heads, decoder.head_dim) == (2, 16)
    assert (gemma("31B").decoder.kv_heads, gemma("31B").decoder.head_dim) == (2, 16)


VISION: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip
WHOLE = {
    "gemma3": lambda: Gemma3Config(
        # transformers caps logits of the text model alone; no published Gemma 3 has a cap.
        text_config={**SIZES, "query_pre_attn_scalar": 24, "final_logit_softcapping": None},
        vision_config={**VISION, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
    ),
    "gemma4": lambda: Gemma4Config(
        text_config={**SIZES, **KINDS["E2B"]}, vision_config={**VISION, "head_dim": 8},
        audio_config=None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WHOLE)
def test_the_text_of_a_model_that_reads_images(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = AutoModelForImageTextToText.from_config(WHOLE[kind]()).eval()
    whole.save_pretrained(tmp_path)
    decoder = load(str(tmp_path), device="cpu")
    assert decoder.family == f"{kind}_text"
    assert "its text model is served, without the rest" in caplog.text
    assert max(selfcheck.check(decoder)) < 1e-4
    ids = torch.tensor([IDS])
    ours, theirs = decoder.model(ids).logits[0, -1], whole(input_ids=ids).logits[0, -1]
    assert_close("the text of a whole model", ours, theirs)


def test_a_gemma_without_experts_is_quantised(tmp_path: Path) -> None:
    gemma("E2B").model.save_pretrained(tmp_path)
    assert isinstance(Gemma4ForCausalLM.from_pretrained(tmp_path), Gemma4ForCausalLM)
    assert max(selfcheck.check(load(str(tmp_path), device="cpu", quantize="int8"))) < 1e-3
