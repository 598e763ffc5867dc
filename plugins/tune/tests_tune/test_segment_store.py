"""A prompt's stored KV goes with it; what many prompts' documents stand behind is computed once."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from weakref import ref

import pytest
import torch

from kvstitch.service.worker.api import Addressing, ChunkPrefill, DecoderModel
from kvstitch_tune.prompts import Prompt, SegmentStore, compute_chunk, part_store
from tests.service.worker.lora_folders import with_loras, write_lora
from tests.service.worker.model.families.test_hybrids import hybrid
from tests.service.worker.tiny import D1, D2, D3, Q, S, random_model, tiny, tiny_config

BEHIND = [[], [[tuple(D3)]]]
PROMPT = Prompt("", tuple(S), (tuple(D1), tuple(D2)), tuple(Q), (), {"primer": BEHIND})


@pytest.fixture
def decoder() -> DecoderModel:
    return tiny("llama").decoder


@torch.inference_mode()
def test_a_part_is_computed_once_for_all_prompts(decoder: DecoderModel) -> None:
    parts = part_store()
    first = SegmentStore(decoder, parts).segments(PROMPT, "primer", "raw")
    held = parts.usage().entries
    assert held
    other = replace(PROMPT, question=(5, 6))
    again = SegmentStore(decoder, parts).segments(other, "primer", "raw")
    assert parts.usage().entries == held
    for one, two in zip(first, again, strict=True):
        assert one is not None and two is not None
        assert torch.equal(one.layer(1)[0], two.layer(1)[0])


@pytest.mark.parametrize("mode", ["system", "primer"])
@torch.inference_mode()
def test_a_chunk_is_computed_once_for_all_stages(decoder: DecoderModel, mode: str) -> None:
    """And for other prompts that it is found for: half of what a stage took was the same again."""
    parts = part_store()
    first = SegmentStore(decoder, parts).segments(PROMPT, mode, "raw")
    later = SegmentStore(decoder, parts).segments(replace(PROMPT, question=(5, 6)), mode, "raw")
    assert all(one is two for one, two in zip(first, later, strict=True))


@torch.inference_mode()
def test_an_adapter_changes_all_documents_but_the_first(tmp_path: Path) -> None:
    model = random_model(tiny_config("llama"))
    decoder = with_loras(model, own=write_lora(tmp_path, model, modules=("k_proj",))).decoder
    plain, adapted = (
        SegmentStore(decoder, part_store(), adapter=name).segments(PROMPT, "primer", "raw")
        for name in ("", "own")
    )
    same = []
    for one, two in zip(plain, adapted, strict=True):
        assert one is not None and two is not None
        same.append(torch.equal(one.layer(0)[0], two.layer(0)[0]))
    assert same == [True, True, False]


@pytest.mark.parametrize("family", ["qwen3_next", "nemotron_h"])
@torch.inference_mode()
def test_a_codec_keeps_what_precompute_stores_with_it(family: str) -> None:
    """States, too, of which a chunk holds some bytes less than a raw one."""
    decoder = hybrid(family).decoder
    _, first, second = SegmentStore(decoder, part_store()).segments(PROMPT, "system", "k8v8")
    for ids, found in zip((D1, D2), (first, second), strict=True):
        address = Addressing(decoder, fingerprint="t", codec="k8v8").document(ids, "system", S, "")
        stored = compute_chunk(ChunkPrefill(decoder), address)
        assert found is not None and found.nbytes == stored.nbytes
        for layer in range(decoder.layers):
            assert torch.equal(found.layer_bytes(layer), stored.layer_bytes(layer))


@torch.inference_mode()
def test_a_prompt_that_is_measured_leaves_nothing(decoder: DecoderModel) -> None:
    gc.disable()
    try:
        store = SegmentStore(decoder, part_store())
        store.segments(PROMPT, "system", "raw")
        alive = ref(store)
        del store
        assert alive() is None
    finally:
        gc.enable()
