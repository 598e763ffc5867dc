"""The workloads are what the page says of them, and depend on the seed alone."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from benchmarks.peers.prompts import Prompt
from benchmarks.peers.workloads import (
    CONVERSATION,
    NEW,
    REORDERED,
    REPEATED,
    SHUFFLED,
    WORKLOADS,
    sources,
)
from benchmarks.quality.tasks import natural_questions
from tests.benchmarks.peers.made import rounds


def ids(prompt: Prompt) -> list[str]:
    return [document.doc_id for document in prompt.documents]


def test_a_round_has_every_workload_and_the_same_seed_gives_the_same_prompts() -> None:
    once, again, other = (list(islice(rounds().made(seed), 4)) for seed in (1, 1, 2))
    assert once == again != other
    workloads = [prompt.workload for prompt in once[0]]
    assert workloads == [SHUFFLED, REORDERED, CONVERSATION, CONVERSATION, REPEATED, NEW]
    assert set(workloads) == set(WORKLOADS)
    keys = [prompt.key for each in once for prompt in each]
    assert len(set(keys)) == len(keys)


def test_popular_documents_return_and_their_order_changes() -> None:
    drawn = [each[0] for each in rounds().made(3)]
    assert all(len(set(ids(prompt))) == 5 for prompt in drawn)
    uses = Counter(doc_id for prompt in drawn for doc_id in ids(prompt))
    assert uses.most_common(1)[0][1] >= 3 * len(drawn) * 5 / 24  # three times its even share
    top = uses.most_common(1)[0][0]
    assert len({ids(prompt).index(top) for prompt in drawn if top in ids(prompt)}) > 1


def test_a_new_order_keeps_the_documents_but_not_the_first_place() -> None:
    for first, second, *_ in rounds().made(5):
        assert second.workload == REORDERED
        assert sorted(ids(first)) == sorted(ids(second))
        assert ids(first)[0] != ids(second)[0]
        assert first.turns != second.turns


def test_a_conversation_grows_behind_the_same_documents() -> None:
    _, start, once, twice, again, _ = next(rounds().made(5))
    assert once.turns[:1] == start.turns and twice.turns[:3] == once.turns
    assert [turn.role for turn in twice.turns] == ["user", "assistant"] * 2 + ["user"]
    assert twice.turns[1].text.startswith("They say, answer ")
    assert twice.documents == once.documents == start.documents
    assert twice.ids[: len(once.ids)] == once.ids  # what a prefix cache can use
    assert again.ids == twice.ids and again.key != twice.key and again.workload == REPEATED


def test_new_documents_are_asked_about_once() -> None:
    made = rounds(unseen=30)
    seen = [doc_id for each in made.made(5) for doc_id in ids(each[-1])]
    warm_up, warm_up_again = made.warm_up()
    assert warm_up == warm_up_again
    seen += ids(warm_up)
    assert len(seen) == len(set(seen)) == 30  # the run ends when there are no more
    assert not set(seen) & {source.document.doc_id for source in made.corpus}


def test_more_documents_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="4 to 8 documents"):
        rounds(corpus=8, count=9)


def test_natural_questions_give_distinct_documents_with_a_question_each() -> None:
    found = sources(natural_questions.load("test"))
    assert len({source.document.text for source in found}) == len(found) > 500
    assert len({source.document.doc_id for source in found}) == len(found)
    assert all(source.question and source.answer for source in found)
