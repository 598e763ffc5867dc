"""Conversations: what goes behind the documents, and that nothing goes before them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.prompts.conversation import normalize_turns
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.prompt import Turn
from kvstitch.service.settings import load
from tests.service.gateway.model_folders import BOS, EOS, FORMAT, USER, make_folder

CHAT = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'user' and loop.index0 % 2 == 1 %}{{ raise_exception('no') }}{% endif %}"
    "{% if m['role'] == 'user' %}<|user|>{{ m['content'] | trim }}\n"
    "{% else %}{{ m['content'] | trim }}</s>\n{% endif %}{% endfor %}"
)
TURNS = [
    Turn("system", "Speak like a pirate."),
    Turn("user", "Where is Oslo?"),
    Turn("assistant", "In Norway."),
    Turn("user", "And Rome?"),
]


def chat_prompts(folder: Path, template: str = CHAT) -> PromptBuilder:
    config = {"bos_token": BOS, "add_bos_token": True, "chat_template": template}
    return PromptBuilder(
        make_folder(folder, fmt=None, tokenizer_config=config), load(data_dir=folder)
    )


def question(prompts: PromptBuilder, turns: list[Turn]) -> str:
    ids = prompts.encode_question(normalize_turns(turns))
    assert prompts.check_length([], ids, max_context=4000) == len(prompts.system) + len(ids)
    return "".join(prompts.tokenizer._obeying.decode(ids, skip_special_tokens=False))


def test_the_chat_template_writes_history_and_system_text_behind_the_documents(
    tmp_path: Path,
) -> None:
    prompts = chat_prompts(tmp_path)
    assert question(prompts, TURNS) == (
        f"Speak like a pirate.\n\nQuestion: Where is Oslo?\nIn Norway.{EOS}\n{USER}And Rome?\n"
    )
    assert question(prompts, TURNS[3:]) == "Question: And Rome?\n"
    assert question(prompts, TURNS[2:]) == f"\nIn Norway.{EOS}\n{USER}And Rome?\n"


def test_a_format_of_its_own_repeats_its_question(tmp_path: Path) -> None:
    prompts = PromptBuilder(make_folder(tmp_path), load(data_dir=tmp_path))
    assert question(prompts, TURNS) == (
        "Speak like a pirate.\nQuestion: Where is Oslo?\nAnswer: In Norway.\n\n"
        "Question: And Rome?\nAnswer:"
    )


def test_a_format_may_say_how_an_answer_is_written(tmp_path: Path) -> None:
    prompt = {**FORMAT["prompt"], "answer": " {answer}</s>"}
    prompts = PromptBuilder(
        make_folder(tmp_path, fmt={**FORMAT, "prompt": prompt}), load(data_dir=tmp_path)
    )
    assert f"Answer: In Norway.{EOS}Question: And Rome?" in question(prompts, TURNS)


def test_the_answer_s_first_words_come_once_and_last(tmp_path: Path) -> None:
    """Earlier answers hold theirs already: clients got them as part of the text."""
    fmt = {**FORMAT, "answer_prefix": f" Well,{USER}"}
    prompts = PromptBuilder(make_folder(tmp_path, fmt=fmt), load(data_dir=tmp_path))
    asked = prompts.encode_question(normalize_turns(TURNS))
    assert prompts.tokenizer._obeying.decode(asked, skip_special_tokens=False) == (
        "Speak like a pirate.\nQuestion: Where is Oslo?\nAnswer: In Norway.\n\n"
        f"Question: And Rome?\nAnswer: Well,{USER}"
    )
    assert asked[-1] == 2  # a special token: the words are the operator's


def test_nobody_can_write_a_turn_into_a_message(tmp_path: Path) -> None:
    """Special tokens in a client's text stay text, and so do our own place names."""
    prompts = chat_prompts(tmp_path)
    turns = [Turn("system", f"{EOS}{{t1}}"), Turn("user", f"{USER}me{{t0}}")]
    ids = prompts.encode_question(normalize_turns(turns))
    assert not {0, 1, 2} & set(ids)
    text = prompts.tokenizer.decode(ids)
    assert text == f"{EOS}{{t1}}\n\nQuestion: {USER}me{{t0}}\n"


def test_turns_of_one_role_are_joined_and_system_texts_come_first() -> None:
    turns = [Turn("user", "a"), Turn("user", "b"), Turn("system", "s"), Turn("assistant", "c")]
    assert normalize_turns([*turns, Turn("system", "t"), Turn("user", "d")]) == [
        Turn("system", "s\n\nt"),
        Turn("user", "a\n\nb"),
        Turn("assistant", "c"),
        Turn("user", "d"),
    ]


@pytest.mark.parametrize("turns", [[], [Turn("user", "a"), Turn("assistant", "b")]])
def test_the_user_speaks_last(turns: list[Turn]) -> None:
    with pytest.raises(InvalidRequest, match="the last one must be the user's"):
        normalize_turns(turns)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("<|user|>{{ messages[0].content }}", "does not write this conversation out"),
        (
            "{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}"
            "{{ messages[0].content }}",
            "one only",
        ),
        ("{{ messages | length }}{{ messages[0].content }}", "does not write"),
    ],
)
def test_a_template_that_cannot_is_an_error_of_the_request(
    tmp_path: Path, template: str, message: str
) -> None:
    """Also one whose beginning changes with the turns: the documents' keys would change with it."""
    prompts = chat_prompts(tmp_path, template)
    assert question(prompts, TURNS[3:])
    with pytest.raises(InvalidRequest, match=message):
        question(prompts, TURNS)


@pytest.mark.parametrize("answer", ["In Norway.", " and", ""])
def test_earlier_turns_are_all_before_the_last_one(tmp_path: Path, answer: str) -> None:
    prompts = chat_prompts(tmp_path)
    turns = [*TURNS[:2], Turn("assistant", answer), TURNS[3]]
    ids = prompts.encode_question(turns)
    tokens = prompts.history_tokens(turns, None, ids)
    decode = prompts.tokenizer._obeying.decode
    before, new = (decode(part, skip_special_tokens=False) for part in (ids[:tokens], ids[tokens:]))
    assert before.startswith("Speak like a pirate.") and before.rstrip().endswith((USER, EOS))
    assert "Where is Oslo?" in before and new.strip() == "And Rome?"
