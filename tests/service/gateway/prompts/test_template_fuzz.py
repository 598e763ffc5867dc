"""Random templates and hostile texts: only the template makes added tokens, and no text is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from kvstitch.service.gateway.prompts.model_folder import ModelFolder
from kvstitch.service.gateway.prompts.tokenizer import ServingTokenizer
from tests.service.gateway.model_folders import BOS, EOS, USER, byte_tokenizer, make_folder

NOT_SPECIAL = ("<think>", "</think>", "<tool_call>")
ADDED = (BOS, EOS, USER, *NOT_SPECIAL)
PIECES = st.sampled_from(
    [*ADDED, *(t[:3] for t in ADDED), *(t[3:] for t in ADDED), "{q}", "th", " "]
)
USER_TEXT = st.lists(PIECES | st.text(max_size=4), max_size=8).map("".join)
TEMPLATE = st.lists(PIECES | st.sampled_from(["{t}", "Q: ", "{", "}"]), max_size=8).map("".join)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ServingTokenizer:
    raw = byte_tokenizer()
    raw.add_tokens([AddedToken(text, special=False, normalized=False) for text in NOT_SPECIAL])
    return ServingTokenizer(ModelFolder(make_folder(tmp_path_factory.mktemp("m"), tokenizer=raw)))


@settings(max_examples=400, deadline=None)
@given(template=TEMPLATE, question=USER_TEXT, turn=USER_TEXT)
def test_only_the_template_makes_added_tokens(
    tokenizer: ServingTokenizer, template: str, question: str, turn: str
) -> None:
    texts = {"q": question, "t": turn}
    ids = tokenizer.encode_template(template, **texts)
    own = [i for part in parts(template) for i in tokenizer.encode_template(part)]
    assert [i for i in ids if i in tokenizer._added] == [i for i in own if i in tokenizer._added]
    written = re.sub(r"\{([qt])\}", lambda place: texts[place[1]], template)
    assert tokenizer._obeying.decode(ids, skip_special_tokens=False) == written


@settings(max_examples=300, deadline=None)
@given(text=USER_TEXT)
def test_text_is_text(tokenizer: ServingTokenizer, text: str) -> None:
    ids = tokenizer.encode_text(text)
    assert not tokenizer._added.intersection(ids) and tokenizer.decode(ids) == text
    assert len(tokenizer.encode_offsets(text)) == len(ids)


def parts(template: str) -> list[str]:
    """What the operator wrote between the places for texts."""
    return template.replace("{t}", "{q}").split("{q}")
