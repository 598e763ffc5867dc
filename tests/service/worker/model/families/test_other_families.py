"""What families whose layers differ must hold to."""

from __future__ import annotations

import pytest
import torch

from kvstitch.service.messages.requests import Method
from kvstitch.service.worker.methods.fusion.a3 import Method as A3
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from kvstitch.service.worker.methods.registry import make_eviction, make_fusion
from tests.references.question_scout import question_scout
from tests.service.worker.engine.test_engine import greedy
from tests.service.worker.engines import A3 as ASK_A3
from tests.service.worker.engines import PIE, VANILLA, rig
from tests.service.worker.methods.eviction import test_stitched
from tests.service.worker.methods.eviction.harness import EXPECTED
from tests.service.worker.tiny import (
    D1,
    D2,
    D3,
    FAMILIES,
    PLAIN_FAMILIES,
    PREFIXES,
    ROPES,
    Q,
    S,
    Tiny,
    assert_close,
    assert_same,
    rope_of,
    tiny,
)

pytestmark = pytest.mark.exhaustive

IDS = [*S, *D1, *D2, *D3, *Q]


def test_full_prefill_is_transformers_and_the_reference(other_family: Tiny) -> None:
    ours = other_family.stitch(Vanilla())
    theirs = other_family.model(torch.tensor([IDS])).logits[0, -1]
    assert_close("vanilla is transformers", ours.logits, theirs)
    assert_same("vanilla", ours, other_family.reference.vanilla(IDS))


@pytest.mark.parametrize("mode", PREFIXES)
def test_pie_is_the_reference(other_family: Tiny, mode: str) -> None:
    prefix = PREFIXES[mode]
    expected = other_family.reference.pie(other_family.prompt(prefix=prefix))
    assert_same("pie", other_family.stitch(Pie(), prefix=prefix), expected)


@pytest.mark.parametrize("rope", sorted(ROPES.keys() - {"yarn_untruncated"}))
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - PLAIN_FAMILIES.keys() - {"phi3"}))
def test_every_kind_of_rope_behind_every_prefix(family: str, rope: str) -> None:
    """Phi-3 has `default` and longrope only (test_adapters.py), gpt-oss a yarn of its own."""
    model = tiny(family, rope)
    theirs = model.model(torch.tensor([IDS])).logits[0, -1]
    assert_close("vanilla is transformers", model.stitch(Vanilla()).logits, theirs)
    for prefix in PREFIXES.values():
        expected = model.reference.pie(model.prompt(prefix=prefix))
        assert_same("pie", model.stitch(Pie(), prefix=prefix), expected)


@pytest.mark.parametrize("ratio", [0.15, 0.5])
def test_a3_is_the_reference_and_full_prefill_at_ratio_1(other_family: Tiny, ratio: float) -> None:
    expected = other_family.reference.a3(other_family.prompt(), ratio)
    assert_same("a3", other_family.stitch(A3(ratio=ratio)), expected)
    full = other_family.reference.vanilla(IDS)
    assert_same("a3 at ratio 1", other_family.stitch(A3(ratio=1.0)), full)


def test_the_default_method_is_the_reference(other_family: Tiny) -> None:
    ours = other_family.stitch(make_fusion("question_scout", {}))
    assert_same("scout", ours, question_scout(other_family.reference, other_family.prompt()))


def test_the_first_document_behind_the_system_prompt_is_exact(other_family: Tiny) -> None:
    ours, full = other_family.stitch(Pie(), prefix=S), other_family.stitch(Vanilla())
    end = len(S) + len(D1)
    for layer in range(other_family.decoder.layers):
        assert_close("first document: K", ours.k[layer][:end], full.k[layer][:end])
        assert_close("first document: V", ours.v[layer][:end], full.v[layer][:end])


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_eviction_method_then_decoding(other_family: Tiny, name: str) -> None:
    rope = rope_of(other_family.model.config.model_type)
    test_stitched.check(other_family, rope, "pie", name, make_eviction(name, {"budget": 21}))


def test_answers_are_transformers_and_stored_chunks_are_read_again(other_family: Tiny) -> None:
    with rig(other_family) as running:
        tokens, _ = running.answer(VANILLA, max_tokens=8)
        assert tokens == greedy(other_family, IDS, 8)
        cold, _ = running.answer(ASK_A3)
        warm, report = running.answer(ASK_A3)
        assert [d.tier for d in report.documents] == ["memory"] * 3
        names = [running.submit(how) for how in (VANILLA, ASK_A3, PIE)]
        running.run()  # in one batch
        assert running.tokens(names[0]) == tokens[:6] == cold
        assert running.tokens(names[1]) == warm


def test_samkv_runs(other_family: Tiny) -> None:
    with rig(other_family) as running:
        running.precompute()
        tokens, report = running.answer(Method("samkv"))
        assert tokens and report.coverage <= 1
