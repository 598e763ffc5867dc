"""Conversations made from the demo's questions."""

from __future__ import annotations

import pytest

from benchmarks.follow_ups.conversations import FORMS, conversations
from benchmarks.follow_ups.entities import named_in, with_ellipsis, with_pronoun
from demo.corpus_files import read_documents
from demo.scenario import PROSE


@pytest.mark.parametrize(
    ("question", "pronoun", "ellipsis"),
    [
        (
            "How long does the guarantee of the Brightwater K2 kettle last?",
            "How long does the guarantee of it last?",
            "And how long does the guarantee last?",
        ),
        (
            "Where do people gather in a fire at Tarnfell?",
            "Where do people gather in a fire there?",
            "And where do people gather in a fire?",
        ),
        ("What is Sandholm's paper?", "What is its paper?", None),
        ("What did Matilda Crane cover?", "What did she cover?", None),
        ("Who noticed it?", None, None),
    ],
)
def test_entities_become_pronouns_or_are_left_out(
    question: str, pronoun: str | None, ellipsis: str | None
) -> None:
    assert with_pronoun(question) == pronoun and with_ellipsis(question) == ellipsis


def test_conversations_are_the_same_at_every_call_and_can_be_answered() -> None:
    texts = {d.doc_id: d.text for d in read_documents(PROSE / "documents")}
    dev, test = conversations("development"), conversations("test")
    assert dev == conversations("development")
    assert not {c.whole for c in dev} & {c.whole for c in test}
    for each in (*dev, *test):
        assert each.is_gold(each.document, texts[each.document])
        assert not each.is_gold("another", texts[each.document])
        asked = each.turns[-1].text
        assert each.turns[0].role == each.turns[-1].role == "user"
        assert named_in(each.turns[0].text) is not None
        assert (asked == each.whole) == (each.form in ("whole", "switch"))
    assert {c.form for c in test} == set(FORMS)
