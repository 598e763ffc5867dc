"""The workloads are what the page says of them, and depend on the seed alone."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import pytest

from benchmarks.peers.prompts import Prompt
from benchmarks.peers.workloads import (
    CHANGING,
    CHANGING_FIRST,
    CONVERSATION,
    NEW,
    REORDERED,
    REPEATED,
    REUSE,
    SHUFFLED,
    USUAL,
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
    assert set(workloads) == set(USUAL)
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


def test_a_conversation_finds_three_other_documents_at_every_turn() -> None:
    made = rounds(count=8, workloads=[CHANGING, CHANGING_FIRST])
    for prompts in islice(made.made(5), 3):
        assert [prompt.workload for prompt in prompts] == [CHANGING_FIRST, *[CHANGING] * 5]
        for before, prompt in pairwise(prompts):
            assert len(set(ids(prompt)) - set(ids(before))) == 3
            assert len(set(ids(prompt))) == 8
            assert prompt.turns[: len(before.turns)] == before.turns
            assert prompt.turns[len(before.turns)].text.startswith("They say, answer ")
        assert len(prompts[-1].turns) == 11


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


def test_chosen_workloads_ask_the_prompts_that_they_ask_among_others() -> None:
    chosen = [each for each in islice(rounds(workloads=[SHUFFLED, REORDERED]).made(5), 20)]
    among_all = list(rounds().made(5))
    assert len(chosen) == 20 > len(among_all)  # no unseen document is needed
    for few, many in zip(chosen, among_all, strict=False):
        assert few == many[:2]


def test_documents_that_do_not_fit_are_left_out_but_none_that_is_asked_about() -> None:
    for each in rounds(count=8, room=12).made(5):
        first, second, _, longest, _, new = each
        assert len(longest.ids) == 12  # the system prompt, 6 documents, 5 turns
        assert sorted(ids(first)) == sorted(ids(second)) == sorted(ids(longest))
        assert len(ids(longest)) == 6 and len(ids(new)) == 8
        for number, turn in zip((0, 2, 4), longest.turns[::2], strict=True):
            assert longest.turns[number] == turn and turn.text[9:-1] in ids(longest)
        assert first.turns[0].text[9:-1] in ids(first)
    with pytest.raises(ValueError, match="not even the documents asked about fit into 8 tokens"):
        next(rounds(room=8).made(5))


def test_of_a_longest_prompt_only_what_is_asked_must_fit() -> None:
    shuffled, again = next(rounds(count=8, room=10, workloads=[SHUFFLED, REORDERED]).made(5))
    assert len(shuffled.ids) == len(again.ids) == 10  # no room is kept for further turns


def test_reuse_mixes_documents_of_the_corpus_with_new_ones() -> None:
    made = rounds(count=8, workloads=list(REUSE), unseen=60)
    corpus = {source.document.doc_id for source in made.corpus}
    several = list(made.made(5))
    assert len(several) == 2  # each takes 20 of 60 - 8 unseen documents
    new = [doc_id for each in several for p in each for doc_id in ids(p) if doc_id not in corpus]
    assert len(new) == len(set(new)) == 40
    for each in several:
        assert [prompt.workload for prompt in each] == list(REUSE)
        assert [len(set(ids(prompt)) & corpus) for prompt in each] == [0, 2, 4, 6, 8]
    half = several[0][2]
    assert [doc_id in corpus for doc_id in ids(half)] != sorted(
        (doc_id in corpus for doc_id in ids(half)), reverse=True
    )


def test_more_documents_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="4 to 8 documents"):
        rounds(corpus=8, count=9)


def test_natural_questions_give_distinct_documents_with_a_question_each() -> None:
    found = sources(natural_questions.load("test"))
    assert len({source.document.text for source in found}) == len(found) > 500
    assert len({source.document.doc_id for source in found}) == len(found)
    assert all(source.question and source.answer for source in found)
