"""The engine's arithmetic on a GPU against the same on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch

from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.families import decoder_for
from kvstitch.service.worker.model.model_facts import ModelFacts
from kvstitch_tune.candidates import Candidate
from kvstitch_tune.prompts import Prompt
from kvstitch_tune.trial import Trial, TrialRunner
from tests.service.worker.tiny import (
    D1,
    D2,
    D3,
    Q,
    S,
    Tiny,
    random_model,
    tiny_config,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]

PROMPTS = [
    Prompt("task", tuple(S), (tuple(D1 * 3), tuple(D2 * 4), tuple(D3 * 3)), tuple(Q)),
    Prompt("task", tuple(S), (tuple(D3 * 2), tuple(D1 * 2)), (*Q, *Q)),
]
METHODS = [
    Candidate("pie", (), "none"),
    Candidate("full_reuse", (), "none"),
    Candidate("legolink", (), "system"),
    Candidate("a3", (("ratio", 0.3),), "system"),
    Candidate("cacheblend", (("ratio", 0.3),), "system"),
    Candidate("question_scout", (("ratio", 0.3),), "system"),
    Candidate("prophetkv", (("ratio", 0.3),), "system"),
    Candidate("relaxkv", (("ratio", 0.1),), "system"),
    Candidate("agentkvshift", (("ratio", 0.3),), "system"),
    Candidate("samkv", (), "system"),
    *(Candidate("pie", (), "system", codec) for codec in ("int8", "int4", "int2")),
    *(
        Candidate("vanilla", (), "system", eviction=name, eviction_parameters=(("budget", 24),))
        for name in ("snapkv", "ada_snapkv", "pyramidkv", "kvec", "h2o", "streaming_llm")
    ),
]


@pytest.mark.parametrize("candidate", METHODS, ids=lambda c: f"{c.method} {c.codec} {c.eviction}")
def test_what_methods_lose(candidate: Candidate, model: Tiny) -> None:
    """In fp32 a method is as far from full prefill on the GPU as on the CPU."""
    there = copy.deepcopy(model.decoder.model).cuda()
    for prompt in PROMPTS:
        here, gpu = (
            lost(decoder, prompt, candidate) for decoder in (model.decoder, decoder_for(there))
        )
        assert gpu.kl == pytest.approx(here.kl, abs=1e-3)
        assert gpu.agreement == pytest.approx(here.agreement) and gpu.bytes == here.bytes
        assert gpu.kept == here.kept and gpu.operations == pytest.approx(here.operations)


@pytest.mark.parametrize("name", ["a3", "cacheblend", "question_scout", "prophetkv"])
def test_all_rows_recomputed_are_full_prefill(name: str) -> None:
    """In bfloat16, through the Triton kernels."""
    config = tiny_config("llama", head_dim=64, max_position_embeddings=1024)
    decoder = decoder_for(random_model(config, dtype=torch.bfloat16).cuda())
    for prompt in PROMPTS:
        all_rows = Candidate(name, (("ratio", 1.0),), "system")
        assert lost(decoder, prompt, all_rows).kl < 1e-3
        half = lost(decoder, prompt, Candidate(name, (("ratio", 0.5),), "system"))
        none = lost(decoder, prompt, Candidate("pie", (), "system"))
        assert half.operations > none.operations and half.kl < none.kl


def lost(decoder: DecoderModel, prompt: Prompt, candidate: Candidate) -> Trial:
    facts = ModelFacts(layers=decoder.layers, heads=decoder.heads, kv_heads=decoder.kv_heads)
    runner = TrialRunner(decoder, facts, longest=prompt.tokens, memory_bytes=1 << 24)
    ((trial,),) = runner.measure(prompt, [candidate])
    return trial
