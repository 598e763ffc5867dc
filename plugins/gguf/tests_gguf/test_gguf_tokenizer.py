"""Tokenizers that a GGUF file describes, as the gateway uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.prompt import Turn
from kvstitch.service.settings import load
from kvstitch_gguf.gguf_conversion import convert
from kvstitch_gguf.gguf_families import KNOWN_SPLITS, SINGLE_DIGITS
from tests_gguf.gguf_files import CHAT_TEMPLATE, PIECES, TOKENS, tiny_config, write_gguf


def prompts_of(file: Path, folder: Path) -> PromptBuilder:
    folder.mkdir()
    convert(file, folder, torch.bfloat16)
    return PromptBuilder(folder, load())


def test_byte_level_with_its_chat_template(tmp_path: Path) -> None:
    """What lies beside the file is another model's."""
    write_gguf(tmp_path / "a.gguf", tiny_config("qwen2"))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("none")
    prompts = prompts_of(tmp_path / "a.gguf", tmp_path / "folder")
    asked = prompts.encode_question([Turn("user", "in the <|user|>?")])
    assert prompts.tokenizer.decode(asked) == "Question: in the <|user|>?\nAnswer:"
    assert prompts.system[0] == 2 and 2 not in asked  # a turn of the template, none of the user's
    assert prompts.end_ids == {1}


def test_sentencepiece(tmp_path: Path) -> None:
    config = tiny_config("llama")
    config.vocab_size, config.bos_token_id, config.eos_token_id = len(PIECES), 1, 2
    write_gguf(tmp_path / "a.gguf", config)
    prompts = prompts_of(tmp_path / "a.gguf", tmp_path / "folder")
    assert prompts.tokenizer.bos == 1 and prompts.system.count(1) == 1
    ids = prompts.tokenizer.encode_text("in the end.</s>\u00e9")
    assert [PIECES[i] for i in ids[:2]] == ["▁in", "▁the"] and 2 not in ids
    assert prompts.tokenizer.decode(ids) == "in the end.</s>\u00e9"


def test_gemma_4_s(tmp_path: Path) -> None:
    """With merges of its own; its template writes BOS."""
    config = tiny_config("gemma4")
    config.vocab_size, config.bos_token_id, config.eos_token_id = len(PIECES), 1, 2
    template = "{{ bos_token }}" + CHAT_TEMPLATE
    write_gguf(tmp_path / "a.gguf", config, family="gemma4", template=template)
    prompts = prompts_of(tmp_path / "a.gguf", tmp_path / "folder")
    ids = prompts.tokenizer.encode_text("in the end.\u00e9")
    assert [PIECES[i] for i in ids[:4]] == ["in", "▁the", "▁", "e"]
    assert prompts.tokenizer.decode(ids) == "in the end.\u00e9"
    assert prompts.system.count(1) == 1


@pytest.mark.parametrize("split", ["deepseek-v3", "deepseek-r1-qwen"])
def test_deepseek_s_tokens_for_turns(tmp_path: Path, split: str) -> None:
    """transformers spells their bars out as bytes, and puts new ones behind the vocabulary."""
    turns = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>"]
    keys: dict[str, Any] = {"tokenizer.ggml.pre": split, "tokenizer.ggml.add_bos_token": True}
    keys["tokenizer.ggml.tokens"] = [*turns, *TOKENS[3:]]
    template = CHAT_TEMPLATE.replace("<|user|>", "<｜User｜>")
    write_gguf(tmp_path / "a.gguf", tiny_config("qwen2"), keys=keys, template=template)
    prompts = prompts_of(tmp_path / "a.gguf", tmp_path / "folder")
    assert prompts.tokenizer.bos == 0 and prompts.end_ids == {1}
    assert prompts.system.count(2) == 1 and max(prompts.system) < len(TOKENS)
    asked = prompts.tokenizer.encode_text("<｜User｜>")
    assert 2 not in asked and prompts.tokenizer.decode(asked) == "<｜User｜>"


_SINGLE = ["It", "'", "s", " ", "1", "9", "5", "7", " x", "=", "foo", ",", "\n", " ", "漢字"]


@pytest.mark.parametrize(
    ("split", "pieces"),
    [
        ("deepseek-llm", _SINGLE),
        ("deepseek-coder", _SINGLE),
        ("deepseek-v3", ["It", "'s", " ", "195", "7", " x", "=foo", ",\n", " ", "漢字"]),
        ("glm4", ["It", "'s", " ", "195", "7", " x", "=foo", ",\n", " 漢字"]),
    ],
)
def test_splits_by_several_expressions(tmp_path: Path, split: str, pieces: list[str]) -> None:
    keys = {"tokenizer.ggml.pre": split}
    write_gguf(tmp_path / "a.gguf", tiny_config("llama"), keys=keys)
    prompts_of(tmp_path / "a.gguf", tmp_path / "folder")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "folder").backend_tokenizer
    found = tokenizer.pre_tokenizer.pre_tokenize_str("It's 1957 x=foo,\n 漢字")
    assert [tokenizer.decoder.decode([piece]) for piece, _ in found] == pieces


def test_answers_end_where_turns_end(tmp_path: Path) -> None:
    """Files of chat models may name the end of a text only."""
    template = CHAT_TEMPLATE.replace("\n", "<|im_end|>\n")
    config, end = tiny_config("llama"), TOKENS.index("<|im_end|>")
    write_gguf(tmp_path / "a.gguf", config, template=template)
    assert prompts_of(tmp_path / "a.gguf", tmp_path / "folder").end_ids == {1, end}
    write_gguf(tmp_path / "b.gguf", config, keys={"tokenizer.ggml.eot_token_id": 2})
    assert prompts_of(tmp_path / "b.gguf", tmp_path / "other").end_ids == {1, 2}


@pytest.mark.parametrize("split", SINGLE_DIGITS)
def test_digits_by_themselves(tmp_path: Path, split: str) -> None:
    """transformers would split text as GPT-2 does, without a word."""
    write_gguf(tmp_path / "a.gguf", tiny_config("llama"), keys={"tokenizer.ggml.pre": split})
    prompts_of(tmp_path / "a.gguf", tmp_path / "folder")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "folder")
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("in 1957")
    assert [piece for piece, _ in pieces] == ["in", "\u0120", "1", "9", "5", "7"]


def test_splits_that_transformers_knows() -> None:
    assert set(KNOWN_SPLITS) == set(GGUF_PRE_TOKENIZER_SPLITS)
