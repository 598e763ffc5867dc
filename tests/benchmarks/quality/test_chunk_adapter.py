"""The pass in which an adapter for chunks is trained sees what stitched KV lets it see."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.quality.chunk_adapter import Adapted, Layout, adapt, logits, read, write
from tests.service.worker.lora_folders import with_loras
from tests.service.worker.tiny import random_model, tiny_config

SYSTEM, QUESTION, ANSWER = [1, 2, 3], [4, 5], [6, 7]
CHUNKS = [[8, 9, 10, 11], [12, 13, 14]]


def model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1,
        )
    ).eval()  # fmt: skip


def test_full_rows_are_the_models_own() -> None:
    """With a primer and a second question beside, which neither chunks nor questions then see."""
    layout = Layout.of(SYSTEM, [20, 21], CHUNKS, [(QUESTION, ANSWER), ([9], [10])])
    rows, weights = layout.rows(questions=True)
    assert weights.tolist() == [torch.tensor(0.2).item(), 1, 1, 1, 1, 1]
    plain = model()
    with torch.no_grad():
        wanted = plain(torch.tensor([[*SYSTEM, *CHUNKS[0], *CHUNKS[1], *QUESTION, *ANSWER]])).logits
        own = logits(plain, layout, rows, full=True, adapted=False)
    torch.testing.assert_close(own[:4], wanted[0, -4:])


def test_one_chunk_alone_is_exact_and_an_adapter_changes_only_chunks() -> None:
    adapted = model()
    parameters = adapt(adapted, 2)
    one = Layout.of(SYSTEM, [], CHUNKS[:1], [(QUESTION, ANSWER)])
    two = Layout.of(SYSTEM, [], CHUNKS, [(QUESTION, ANSWER)])
    rows = one.rows(questions=False)[0]
    with torch.no_grad():
        full = logits(adapted, one, rows, full=True, adapted=False)
        torch.testing.assert_close(logits(adapted, one, rows, full=False, adapted=True), full)
        rows = two.rows(questions=False)[0]
        full, alone = (logits(adapted, two, rows, full=f, adapted=False) for f in (True, False))
        assert not torch.allclose(full, alone)
        for parameter in [*parameters.values()][1::2]:
            parameter.data.fill_(0.3)
        assert not torch.allclose(logits(adapted, two, rows, full=False, adapted=True), alone)
        again = logits(adapted, two, rows, full=False, adapted=False)
        torch.testing.assert_close(again, alone)


def test_what_is_written_is_what_the_service_loads(tmp_path: Path) -> None:
    trained = random_model(tiny_config("llama"))
    parameters = adapt(trained, 2)
    for parameter in parameters.values():
        parameter.data.uniform_(-0.5, 0.5)
    write(tmp_path, parameters, 2, "base")
    decoder = with_loras(random_model(tiny_config("llama")), own=tmp_path).decoder
    rows = torch.randn(5, trained.config.hidden_size)
    with torch.no_grad():
        Adapted.use = torch.ones(5, 1)
        wanted = trained.model.layers[1].self_attn.v_proj(rows)
        Adapted.use = None
        own = decoder.with_lora("own").projections[1].qkv(rows)[:, -wanted.shape[1] :]
    torch.testing.assert_close(own, wanted)
    again = adapt(random_model(tiny_config("llama")), 2)
    read(tmp_path, again)
    assert all(torch.equal(again[name], each) for name, each in parameters.items())
