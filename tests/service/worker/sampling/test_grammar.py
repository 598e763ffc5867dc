"""Answers in a given form, on the demo model's real vocabulary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from llguidance import LLMatcher
from tokenizers import Tokenizer

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.grammars.forms import Form
from kvstitch.service.messages.requests import Generate, Sampling
from kvstitch.service.worker.model.load import load
from kvstitch.service.worker.sampling.grammar import Grammar, Grammars
from kvstitch.service.worker.sampling.sampler import LogitAdjustments, Sampler
from tests.service.worker.engines import VANILLA, Rig, rig
from tests.service.worker.tiny import Tiny

DEMO = Path("service/demo_model")
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "rank": {"type": "integer", "minimum": 0, "maximum": 99},
        "seen": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["city", "rank", "seen"],
    "additionalProperties": False,
}
VOCABULARY = 1536
QUESTION = list(range(20, 60))


@pytest.fixture(scope="module")
def model() -> Tiny:
    nothing: Any = None
    return Tiny(nothing, load(str(DEMO), dtype="float32", device="cpu"), nothing)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


@pytest.fixture(scope="module")
def grammars(model: Tiny) -> Iterator[Grammars]:
    with closing(
        Grammars(DEMO / "tokenizer.json", model.decoder.vocabulary, model.decoder.end_ids)
    ) as grammars:
        yield grammars


def schema_grammar(grammars: Grammars) -> str:
    return grammars.processes.write(Form("json_schema", SCHEMA)).grammar


def sampled(form: Grammar, tokenizer: Tokenizer, seed: int) -> str:
    """An answer of a model that knows nothing: all tokens are equally likely."""
    sampler = Sampler(Sampling(temperature=1.0, seed=seed), grammar=form)
    flat, ids = torch.zeros(VOCABULARY), []
    while not sampler.complete and (token := sampler(flat)) != 2:
        ids.append(token)
    sampler.close()
    text: str = tokenizer.decode(ids)
    return text


@pytest.mark.parametrize("seed", range(20))
def test_even_noise_keeps_to_a_schema(grammars: Grammars, tokenizer: Tokenizer, seed: int) -> None:
    text = sampled(grammars.compile(schema_grammar(grammars)), tokenizer, seed)
    answer = json.loads(text)
    assert list(answer) == ["city", "rank", "seen"]
    assert len(answer["city"]) <= 12 and 0 <= answer["rank"] <= 99
    assert set(answer["seen"]) <= {"a", "b"} and len(answer["seen"]) <= 3


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0.0, "logit_bias": {70: 3.0, 71: -4.0}},
        {"temperature": 1.3},
        {"temperature": 1.0, "top_p": 0.8, "frequency_penalty": 0.7, "top_k": 40},
    ],
)
def test_the_draw_is_that_of_the_whole_vocabulary_with_others_at_minus_infinity(
    grammars: Grammars, how: dict[str, Any]
) -> None:
    """It is made among the allowed tokens only."""
    form, choices = grammars.compile(schema_grammar(grammars)), 0
    sampling = Sampling(seed=5, **how)
    adjustments = LogitAdjustments.of(sampling, lambda: torch.tensor([1]), {2})
    plain = LogitAdjustments.of(sampling, lambda: torch.tensor([1]), {2})
    sampler, reference = Sampler(sampling, adjustments, form), Sampler(sampling, plain)
    noise = torch.Generator().manual_seed(7)
    while not sampler.complete:
        logits = torch.randn(VOCABULARY, generator=noise) * 4
        only = form.only()
        if only is None:
            masked = torch.full_like(logits, -torch.inf)
            masked[form.allowed()] = logits[form.allowed()]
            choices += 1
            expected = reference(masked)
        else:
            expected = only
            if plain is not None:
                plain.sampled(only)
        assert sampler(logits) == expected
    assert choices > 3
    sampler.close()


def test_a_choice_and_an_expression(grammars: Grammars, tokenizer: Tokenizer) -> None:
    choice = LLMatcher.grammar_from_lark('start: "Paris" | "Rome" | "Pari"')
    assert {sampled(grammars.compile(choice), tokenizer, n) for n in range(12)} <= {
        *("Paris", "Rome", "Pari"),
    }
    digits = LLMatcher.grammar_from_regex(r"[0-9]{3}-[a-c]+x")
    for seed in range(5):
        text = sampled(grammars.compile(digits), tokenizer, seed)
        assert text[3] == "-" and text[:3].isdigit() and text.endswith("x")


def test_a_model_without_end_tokens(tokenizer: Tokenizer) -> None:
    choice = LLMatcher.grammar_from_lark('start: "Paris" | "Rome"')
    with closing(Grammars(DEMO / "tokenizer.json", VOCABULARY, ())) as grammars:
        assert sampled(grammars.compile(choice), tokenizer, 1) in ("Paris", "Rome")


def test_a_grammar_that_cannot_be_followed_says_so(grammars: Grammars) -> None:
    broken = Sampler(Sampling(), grammar=grammars.compile('{"grammars": [{"nothing": 1}]}'))
    with pytest.raises(InvalidRequest, match="guided: the grammar cannot be followed") as caught:
        broken(torch.zeros(VOCABULARY))
    assert caught.value.field == "guided"
    broken.close()


def ask(engine: Rig, name: str, form: str, **fields: object) -> str:
    sampling = Sampling(max_tokens=200, grammar=form, **fields)  # type: ignore[arg-type]
    engine.engine.submit(Generate(name, [], [], QUESTION, VANILLA, sampling=sampling))
    return name


@pytest.mark.parametrize("draft_tokens", [pytest.param(0, marks=pytest.mark.slow), 7])
def test_several_answers_in_one_batch_each_in_its_form(
    model: Tiny, grammars: Grammars, tokenizer: Tokenizer, draft_tokens: int
) -> None:
    """Free, greedy and sampled answers beside each other, and the same as alone; what the form
    leaves no choice about is drafted, which changes nothing."""
    schema = schema_grammar(grammars)
    texts = {}
    for together in (True, False):
        with rig(model, pool_tokens=2000, draft_tokens=draft_tokens, grammars=grammars) as engine:
            names = []
            for number in range(4):
                how = {"temperature": float(number % 2), "seed": number}
                form = schema if number < 3 else ""
                names.append(ask(engine, f"a{number}", form, **how))
                if not together:
                    engine.run()
            engine.run()
            answers = [engine.tokens(name) for name in names]
            assert [engine.done(name).finish_reason for name in names[:3]] == ["stop"] * 3
            drafts = engine.engine.answering.drafts
            assert (drafts["accepted"] > 0) == (draft_tokens > 0)
        texts[together] = answers
        for ids in answers[:3]:
            assert set(json.loads(tokenizer.decode(ids))) == {"city", "rank", "seen"}
    assert texts[True] == texts[False]


def test_one_bad_grammar_fails_its_request_alone(model: Tiny, grammars: Grammars) -> None:
    with rig(model, pool_tokens=2000, grammars=grammars) as engine:
        good = ask(engine, "good", LLMatcher.grammar_from_lark('start: "Paris is big"'))
        bad = ask(engine, "bad", '{"grammars": [{"nothing": 1}]}')
        engine.run()
        assert engine.done(good).finish_reason == "stop"
        assert engine.failed(bad).code == "invalid_request"
    with (
        rig(model, pool_tokens=2000) as engine,
        pytest.raises(InvalidRequest, match="no tokenizer"),
    ):
        ask(engine, "x", "{}")
