"""Finding calls in answers, whole and cut into pieces of every size."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.service.gateway.tool_calls.call_parser import CallParser, ParsedAnswer
from kvstitch.service.gateway.tool_calls.tools import (
    FORMS,
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    Tool,
    ToolForm,
    ToolSet,
    form_of,
)
from tests.service.gateway.tool_calls import templates

TOOLS = ToolSet((Tool("f"), Tool("g")))
F, G = ("f", '{"a": "x}\\"{", "b": [1, {"c": 2}]}'), ("g", "{}")
CASES: list[tuple[ToolForm, str, str, list[tuple[str, str]]]] = [
    (HERMES, f'Hi.\n<tool_call>\n{{"name": "f", "arguments": {F[1]}}}\n</tool_call>', "Hi.", [F]),
    (
        HERMES,
        f'<tool_call>{{"arguments": {F[1]}, "name": "f"}}</tool_call>\n<tool_call>{{"name": "g"}}'
        "</tool_call>",
        "",
        [F, G],
    ),
    (
        HERMES,
        f'<tool_call>[\n{{"name": "f", "arguments": {F[1]}}}, {{"name": "g", "arguments": null}}]'
        "</tool_call>",
        "",
        [F, G],
    ),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}',
        "",
        [("f", '{"a": 1}')],
    ),
    (HERMES, f'<tool_call>{{"name": "g"}}<tool_call>{{"name": "f", "parameters": {F[1]}}}', "",
     [G, F]),
    (HERMES, "plain < text <tool \n", "plain < text <tool \n", []),
    # Without marks, as small models write them.
    (HERMES, f'{{"name": "f", "arguments": {F[1]}}}\n{{"name": "g", "arguments": {{}}}}', "",
     [F, G]),
    (HERMES, f'```json\n{{"name": "f", "arguments": {F[1]}}}\n```\nDone.', "\nDone.", [F]),
    (HERMES, '{"name": "g"}', '{"name": "g"}', []),
    (HERMES, '{"name": "x", "arguments": {}}', '{"name": "x", "arguments": {}}', []),
    (HERMES, '```json\n{"a": {"name": "f"}}\n```', '```json\n{"a": {"name": "f"}}\n```', []),
    (HERMES, '```python\nf({"name": 1})\n```', '```python\nf({"name": 1})\n```', []),
    (MISTRAL, f'{{"name": "f", "arguments": {F[1]}}}', "", [F]),
    (LLAMA3_JSON, f'{{"name": "f", "parameters": {F[1]}}}; {{"name": "g"}}', "", [F, G]),
    (LLAMA3_JSON, f'{{"name": "f", "parameters": {F[1]}}} Done. ', "Done.", [F]),
    (LLAMA3_JSON, '{"x": 1} is JSON', '{"x": 1} is JSON', []),
    (LLAMA3_JSON, "[1, 2]", "[1, 2]", []),
    (LLAMA3_JSON, 'Like {"name": "f"}', 'Like {"name": "f"}', []),
    (
        MISTRAL,
        f'Hi.[TOOL_CALLS] [{{"name": "f", "arguments": {F[1]}, "id": "123456789"}}, '
        '{"name": "g", "arguments": {}}]',
        "Hi.",
        [F, G],
    ),
    (MISTRAL, f"[TOOL_CALLS]f{F[1]}[TOOL_CALLS]g[ARGS]{{}}", "", [F, G]),
    (MISTRAL, "[TOOL_CALLS] nothing", "[TOOL_CALLS] nothing", []),
]  # fmt: skip


def parse(form: ToolForm, parts: list[str], *, early: bool) -> CallParser:
    parser = CallParser(form, TOOLS, early=early)
    passed = ParsedAnswer()
    for part in parts:
        for piece in parser.push(part):
            passed.add(piece)
    for piece in parser.finish():
        passed.add(piece)
    assert passed == parser.answer  # what is passed on is what is remembered
    return parser


def calls(parser: CallParser) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in parser.answer.calls]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(("form", "answer", "text", "expected"), CASES)
def test_pieces_of_any_size_yield_the_same(
    form: ToolForm,
    answer: str,
    text: str,
    expected: list[tuple[str, str]],
    size: int,
    early: bool,
) -> None:
    parts = [answer[start : start + size] for start in range(0, len(answer), size)]
    parser = parse(form, parts, early=early)
    assert (parser.answer.text, calls(parser)) == (text, expected)
    ids = [call.id for call in parser.answer.calls]
    assert len(set(ids)) == len(ids)


MARKS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", '{"name": "f"', '"arguments": ')
ALPHABET = st.sampled_from([*MARKS, "f", *'{}[],:;" \n\\x1<t'])


@settings(max_examples=400, deadline=None)
@given(form=st.sampled_from(list(FORMS.values())), parts=st.lists(ALPHABET, max_size=25))
def test_nothing_is_lost_where_there_is_no_call(form: ToolForm, parts: list[str]) -> None:
    whole, pieces = (
        parse(form, ["".join(parts)], early=False),
        parse(form, parts, early=False),
    )
    assert whole.answer.text == pieces.answer.text and calls(whole) == calls(pieces)
    if not whole.answer.calls:
        assert "".join(whole.answer.text.split()) == "".join("".join(parts).split())


def test_a_template_tells_its_form() -> None:
    assert form_of(templates.HERMES) == HERMES
    assert form_of(templates.LLAMA3) == LLAMA3_JSON
    assert form_of(templates.MISTRAL) == MISTRAL
    assert form_of(templates.PLAIN) == form_of(None) == HERMES


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_call_that_is_cut_anywhere_is_a_call_as_soon_as_it_is_clear_of_what(
    form: ToolForm, choice: Literal["auto", "required"]
) -> None:
    tools = ToolSet((Tool("get_weather"), Tool("get_time"), Tool("clock")), choice)
    arguments = '{"city": "Os\\u00f8", "n": [1]}'
    text = form.call_text("get_weather", arguments)
    clear, begun = text.index("get_w") + 5, text.index(arguments) + 1
    for cut in range(text.index("name"), len(text) + 1):
        whole, early = (CallParser(form, tools, early=early) for early in (False, True))
        for parser in (whole, early):
            for char in text[:cut]:
                parser.push(char)
            parser.finish(cut=True)
        assert whole.answer.text == early.answer.text
        if cut < clear:
            named = form.opens or choice == "required" or cut >= text.index("get_")
            assert bool(whole.answer.text) == (not named) and not whole.answer.calls, text[:cut]
            continue
        for parser in (whole, early):
            (call,) = parser.answer.calls
            assert (parser.answer.text, call.name) == ("", "get_weather"), text[:cut]
            assert arguments.startswith(call.arguments)
            assert bool(call.arguments) == (cut >= begun)
