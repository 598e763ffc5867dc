"""The tasks: reproducible, answerable from the context, true to what they say they test."""

import random
import re
import subprocess
import sys

import pytest

from demo.language.grammar import open_names
from demo.language.tasks import TASKS, chunks, sample
from demo.language.vocabulary import build_tokenizer
from demo.language.wording import CONTINUED_TEXTS, TEXTS
from demo.measuring.answering import MAX_TOKENS

TOKENIZER = build_tokenizer()
NAMES = pytest.mark.parametrize("task", TASKS)


@NAMES
def test_samples_are_reproducible(task: str) -> None:
    assert sample(task, random.Random(3)) == sample(task, random.Random(3))
    assert sample(task, random.Random(3)) != sample(task, random.Random(4))


@NAMES
def test_every_part_of_the_answer_is_in_the_context(task: str) -> None:
    for seed in range(30):
        drawn = sample(task, random.Random(seed))
        (answer,) = drawn.answers
        assert all(part in drawn.context for part in answer.split(", "))


@NAMES
def test_names_are_held_out(task: str) -> None:
    seen, held_out = set(open_names(False)), set(open_names(True))
    for seed in range(10):
        words = set(re.findall(r"\w+", sample(task, random.Random(seed)).context))
        assert words & held_out or task == "cwe", "that task has words of closed lists only"
        assert not words & seen


@NAMES
def test_contexts_have_the_lengths_trained_on(task: str) -> None:
    for seed in range(20):
        drawn = sample(task, random.Random(seed))
        assert 90 < len(TOKENIZER.encode(drawn.context).ids) < 500
        assert len(TOKENIZER.encode(" " + drawn.answers[0]).ids) < MAX_TOKENS


def test_chunks_are_the_context_cut_by_ids() -> None:
    context = sample("hop", random.Random(1)).context
    cut = chunks(TOKENIZER, context, 48)
    assert all(len(ids) == 48 for ids in cut[:-1])
    assert [i for ids in cut for i in ids] == TOKENIZER.encode(context).ids


def test_updates_repeat_a_template_and_the_last_statement_holds() -> None:
    for seed in range(20):
        drawn = sample("update", random.Random(seed))
        sentences = re.findall(r"[^.\n]+", drawn.context)
        (answer,) = drawn.answers
        stated = [s for s in sentences if answer in s]
        assert stated
        lead = {s.strip().replace(answer, "") for s in stated}
        rivals = [s for s in sentences if any(s.strip().startswith(x.rstrip()) for x in lead)]
        assert len(rivals) >= 2


def test_listed_values_stand_in_the_order_of_the_answer() -> None:
    for seed in range(20):
        drawn = sample("list", random.Random(seed))
        name = re.search(r"did (.+?) (take|travel|sell|buy)", drawn.question)
        assert name is not None
        values = re.findall(
            rf"(?i){name[1]} (?:took on|travelled to|sold the|bought a) (\w+)", drawn.context
        )
        assert ", ".join(values) == drawn.answers[0]


def test_a_hop_names_neither_owner_nor_home() -> None:
    for seed in range(20):
        drawn = sample("hop", random.Random(seed))
        assert "owner of" in drawn.question or "home of" in drawn.question


def test_following_a_chain_gives_its_value() -> None:
    for seed in range(20):
        drawn = sample("chain", random.Random(seed))
        values = dict(re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", drawn.context))
        at = drawn.question.split()[-1].rstrip("?")
        hops = 0
        while at in values:
            at, hops = values[at], hops + 1
        assert at == drawn.answers[0]
        assert hops > 1


def test_every_word_of_the_tasks_is_one_token() -> None:
    for text in TEXTS + CONTINUED_TEXTS:
        for word in re.sub(r"\{\w\}|[.,?:]", " ", text).split():
            assert len(TOKENIZER.encode(" " + word).ids) == 1, word


def test_importing_the_tasks_needs_no_torch() -> None:
    code = "import sys, demo.language.tasks; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
