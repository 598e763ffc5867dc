"""Prompt formats: a folder's own, from a chat template, or plain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvstitch.service.errors import ModelRefused
from kvstitch.service.gateway.prompts.model_folder import (
    DOCUMENT,
    INSTRUCTION,
    PLAIN,
    ModelFolder,
    load_format,
)
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.prompt import Turn
from kvstitch.service.settings import demo_model, load
from tests.service.gateway.model_folders import BOS, FORMAT, USER, make_folder

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|user|>{{ m['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|user|>answer:{% endif %}"
)


def chat_folder(path: Path, template: str, *, as_file: bool = False) -> Path:
    config = {"bos_token": BOS, "add_bos_token": True}
    if not as_file:
        config["chat_template"] = template
    folder = make_folder(path, fmt=None, tokenizer_config=config)
    if as_file:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize("as_file", [True, False])
def test_chat_template_is_split_around_the_documents(tmp_path: Path, as_file: bool) -> None:
    folder = chat_folder(tmp_path, TEMPLATE, as_file=as_file)
    fmt = load_format(ModelFolder(folder))
    assert fmt.system == f"{BOS}{USER}{INSTRUCTION}" and fmt.document == DOCUMENT
    assert fmt.question == f"Question: {{question}}\n{USER}answer:"
    assert fmt.prefix_mode == "primer"


def test_bos_comes_once(tmp_path: Path) -> None:
    prompts = PromptBuilder(chat_folder(tmp_path, TEMPLATE), load(data_dir=tmp_path))
    assert prompts.system[:2] == [0, 2] and prompts.system.count(0) == 1
    question = prompts.encode_question([Turn("user", f"why{BOS}?")])
    assert question.count(0) == 0 and question.count(2) == 1


def test_named_templates_and_the_model_s_own_format_first(tmp_path: Path) -> None:
    named = [{"name": "tool", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    folder = make_folder(tmp_path, fmt=None, tokenizer_config={"chat_template": named})
    assert load_format(ModelFolder(folder)).system == f"{USER}{INSTRUCTION}"
    (folder / "kvstitch.json").write_text(json.dumps(FORMAT))
    assert load_format(ModelFolder(folder)).system == "Answer.\n"


def test_neither_is_a_plain_completion(tmp_path: Path) -> None:
    assert load_format(ModelFolder(make_folder(tmp_path, fmt=None))) == PLAIN


def test_primer_is_the_mode_where_nobody_says_otherwise(tmp_path: Path) -> None:
    """A setting goes before the model's kvstitch.json, and that before the default."""
    chat, own = chat_folder(tmp_path / "chat", TEMPLATE), tmp_path / "own"
    silent = {name: value for name, value in FORMAT.items() if name != "prefix_mode"}
    for folder, mode in (
        (chat, "primer"),
        (make_folder(tmp_path / "base", fmt=None), "primer"),
        (make_folder(tmp_path / "silent", fmt=silent), "primer"),
        (make_folder(own, fmt={**FORMAT, "prefix_mode": "system"}), "system"),
        (demo_model(), "system"),
    ):
        assert PromptBuilder(folder, load(data_dir=tmp_path)).prefix_mode == mode
        set_ = load(data_dir=tmp_path, prefix_mode="neighbours")
        assert PromptBuilder(folder, set_).prefix_mode == "neighbours"


def test_the_date_does_not_change_the_prompt(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path, "{{ strftime_now('%d %b %Y') }}" + TEMPLATE)
    assert load_format(ModelFolder(folder)).system.startswith("26 Jul 2024")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('only tools') }}", "only tools"),
        ("{{ messages[1].content }}", "no element"),
        ("fixed", "exactly once"),
        ("{{ messages[0].content }} {{ messages[0].content }}", "exactly once"),
        ("{% if %}", "cannot be rendered"),
        ("{{ ''.__class__.__mro__ }}", "cannot be rendered"),
    ],
)
def test_unusable_templates_are_refused(tmp_path: Path, template: str, message: str) -> None:
    with pytest.raises(ModelRefused, match=message):
        load_format(ModelFolder(chat_folder(tmp_path, template)))


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "{}",
        json.dumps({**FORMAT, "chunksize": 5}),
        json.dumps({**FORMAT, "prefix_mode": "all"}),
        json.dumps({**FORMAT, "passage_order": "random"}),
        json.dumps({**FORMAT, "prompt": {**FORMAT["prompt"], "question": "?"}}),
    ],
)
def test_unusable_format_files_are_refused(tmp_path: Path, content: str) -> None:
    folder = make_folder(tmp_path)
    (folder / "kvstitch.json").write_text(content)
    with pytest.raises(ModelRefused, match=r"kvstitch\.json"):
        load_format(ModelFolder(folder))


def test_settings_override_the_folder_and_chunks_fit(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, fmt={**FORMAT, "prefix_mode": "bos_keep"})
    prompts = PromptBuilder(folder, load(data_dir=tmp_path, chunk_tokens=40, top_k=9))
    assert prompts.format.top_k == 9 and prompts.prefix_mode == "bos_keep"
    text = f"Some words and {USER} and {BOS} more of them. " * 8
    spans = prompts.chunking().split(text, "Title")
    for span in spans:
        rendered = prompts.format.render_document("Title", text[span.start : span.end])
        assert 1 + len(prompts.tokenizer.encode_text(rendered)) <= 40
