"""Prompts as ids: parts, borders, chat templates; what the suites hand to the bench."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from benchmarks.quality.encode import Encoder
from benchmarks.quality.sample import TextSample
from benchmarks.quality.suites import SHORT_CONTEXT, Choice, draw
from benchmarks.quality.tasks import multidoc
from service.errors import InvalidRequest, PromptTooLong
from service.settings import demo_model

TEXT = TextSample(
    suite="multidoc",
    task="t",
    number=0,
    instruction="Answer the question from the documents.\n",
    context="Velen\nVelen is a port. " * 9,
    question="Question: Where is Velen?\nAnswer:",
    references=("here",),
    metric="exact",
    answer_tokens=4,
    answer_prefix=" It is",
)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(demo_model())


def test_parts_are_encoded_by_themselves(encoder: Encoder) -> None:
    sample = encoder.encode(TEXT, 16)
    plain = encoder.tokenizer.encode_text
    assert sample.system == (encoder.tokenizer.bos, *plain(TEXT.instruction))
    assert list(chain(*sample.documents)) == plain(TEXT.context)
    assert sample.question == (*plain(TEXT.question), *plain(" It is"))


def test_chunks_have_one_size_but_the_last(encoder: Encoder) -> None:
    sizes = [len(ids) for ids in encoder.encode(TEXT, 16).documents]
    assert set(sizes[:-1]) == {16}
    assert 0 < sizes[-1] <= 16
    assert len(encoder.encode(TEXT, 4096).documents) == 1
    assert encoder.encode(replace(TEXT, context=""), 16).documents == ()


def test_a_key_covers_what_decides_answer_and_score(encoder: Encoder) -> None:
    key = encoder.encode(TEXT, 16).key
    assert encoder.encode(TEXT, 16).key == key
    assert encoder.encode(replace(TEXT, details={"depth": 3}), 16).key == key
    others = [
        encoder.encode(TEXT, 17),
        encoder.encode(replace(TEXT, references=("there",)), 16),
        encoder.encode(replace(TEXT, answer_tokens=5), 16),
        encoder.encode(replace(TEXT, stop=("\n",)), 16),
        encoder.encode(replace(TEXT, question="Question?"), 16),
    ]
    assert len({key, *(s.key for s in others)}) == 6


@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_chat_template_is_put_around(tmp_path: Path, adds_bos: bool) -> None:
    """Its BOS once, whether or not the tokenizer has one too; the answer's prefix behind the
    assistant's header."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_model() / name, tmp_path / name)
    template = (
        "<s>{% for m in messages %}User: {{ m['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}Bot:{% endif %}"
    )
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config |= {"chat_template": template, "add_bos_token": adds_bos}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    encoder = Encoder(tmp_path)
    bos, end = 1, 2
    plain = encoder.tokenizer.encode_text
    chat = encoder.encode(TEXT, 16)
    assert chat.system == (bos, *plain("User: "), *plain(TEXT.instruction))
    assert chat.question == (*plain(TEXT.question), end, *plain("Bot:"), *plain(" It is"))
    bare = encoder.encode(replace(TEXT, chat=False), 16)
    assert bare.system == (*([bos] if adds_bos else []), *plain(TEXT.instruction))
    assert bare.question == (*plain(TEXT.question), *plain(" It is"))


# -- suites ---------------------------------------------------------------------------------------


def test_samples_depend_on_seed_task_and_number_only(encoder: Encoder) -> None:
    few = draw(Choice(tasks=("list", "single"), samples=2, seeds=(1, 2)), encoder, SHORT_CONTEXT)
    more = draw(Choice(samples=3, seeds=(2, 1, 7)), encoder, SHORT_CONTEXT)
    assert [s.task for s in few] == ["list", "single"] * 4
    assert {s.key for s in few} < {s.key for s in more}
    assert [s.text.details["seed"] for s in few[:4]] == [1, 1, 2, 2]
    assert not set(multidoc.TEST) & set(multidoc.DEVELOPMENT)


def test_needles_of_the_demo_language(encoder: Encoder) -> None:
    """At their depth and length, as far as sentences go; the answer once, and asked for."""
    choice = Choice("short_needle", samples=2, seeds=(1,), lengths=(160, 320), depths=(0, 50, 100))
    samples = draw(choice, encoder, SHORT_CONTEXT)
    assert len(samples) == 2 * 2 * 3
    for sample in samples:
        text, details = sample.text, sample.text.details
        [answer] = text.references
        assert text.context.count(answer) == 1
        before, _, behind = text.context.partition(answer)
        key = before.rpartition(" for ")[2].removesuffix(" is: ")
        assert key in text.question
        tokens = sum(map(len, sample.documents))
        length, depth = float(details["length"]), float(details["depth"])
        assert length - 40 < tokens <= length + 2
        assert abs(100 * len(before) / len(before + behind) - depth) < 25


def test_ruler_and_longbench_are_drawn(encoder: Encoder, tmp_path: Path) -> None:
    choice = Choice(
        "ruler", ("niah_single_1", "vt"), samples=2, seeds=(1, 2), length=900, small_words=True
    )
    samples = draw(choice, encoder, SHORT_CONTEXT)
    assert [s.task for s in samples] == ["niah_single_1", "vt"] * 4
    assert {s.text.details["seed"] for s in samples} == {1, 2}
    row = {"input": "Who?", "context": "Velen. " * 300, "answers": ["Velen"], "length": 300,
           "dataset": "hotpotqa", "language": "en", "all_classes": None, "_id": "a"}  # fmt: skip
    (tmp_path / "hotpotqa.jsonl").write_text(json.dumps(row) + "\n")
    choice = Choice("longbench", ("hotpotqa",), samples=3, data=tmp_path, limit=900)
    [sample] = draw(choice, encoder, 2048)
    assert sample.tokens <= 902
    assert len(sample.documents[0]) <= 512


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (Choice("nothing"), "multidoc"),
        (Choice(tasks=("nothing",)), "single"),
        (Choice(samples=0), "at least 1"),
        (Choice("ruler", ("nothing",)), "niah_single_1"),
        (Choice("longbench"), "--data"),
        (Choice("longbench", ("nothing",), data=Path("x")), "hotpotqa"),
    ],
)
def test_a_wrong_choice_is_named(encoder: Encoder, choice: Choice, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        draw(choice, encoder, SHORT_CONTEXT)


def test_a_prompt_the_model_cannot_hold(encoder: Encoder) -> None:
    with pytest.raises(PromptTooLong, match="takes 100"):
        draw(Choice(samples=1, seeds=(1,)), encoder, 100)
