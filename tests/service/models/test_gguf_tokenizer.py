"""Tokenizers that a GGUF file describes, as the gateway uses them."""

from __future__ import annotations

from pathlib import Path

import torch

from service.gateway.prompts.prompt_builder import PromptBuilder
from service.models.gguf_conversion import convert
from service.prompt import Turn
from service.settings import load
from tests.service.models.gguf_files import PIECES, tiny_config, write_gguf


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
