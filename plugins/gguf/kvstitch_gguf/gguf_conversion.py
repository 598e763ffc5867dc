"""Makes a Hugging Face folder of a GGUF file: `python -m kvstitch_gguf.gguf_conversion SOURCE
FOLDER DTYPE`, a process of its own, so that torch and the weights leave the memory with it.

transformers' loader of GGUF files makes the tokenizer only: of most families it passes something
over without a word. A fault of the file is written to stdout as one line of JSON, {"fault": …},
with exit code 3.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from kvstitch.service.errors import ModelRefused
from kvstitch_gguf.gguf_checks import check
from kvstitch_gguf.gguf_config import config_of, weights_of
from kvstitch_gguf.gguf_families import OWN_SPLITS, SINGLE_DIGITS, family_of
from kvstitch_gguf.gguf_file import GgufHeader, read_header

REFUSED = 3
# Keys of tokens that end an answer, and tokens that end a turn where a chat template writes them:
# files of chat models often name the end of a text alone.
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ENDS_OF_TURNS = (
    *("<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|END_OF_TURN_TOKEN|>", "<|end_of_text|>"),
    *("<|return|>", "<|call|>", "<|end|>", "<turn|>"),
)
# "<｜" and "｜>" in the letters that bytes are spelled with.
_OPENS, _CLOSES = "<ï½ľ", "ï½ľ>"


def convert(source: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write the model in `source` into `folder`, which exists."""
    header = read_header(source)
    check(header)
    family = family_of(header)
    assert family is not None
    config = config_of(header, family)
    config.dtype = dtype
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    tokenizer = _tokenizer(header)
    config.eos_token_id = _ends(header, tokenizer)
    weights = weights_of(header, family, model, dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(header: GgufHeader) -> PreTrainedTokenizerFast:
    """Return the tokenizer that the file describes."""
    # By itself in a folder: a tokenizer.json beside the file may be another model's.
    with tempfile.TemporaryDirectory() as alone:
        (Path(alone) / "model.gguf").symlink_to(header.path.resolve())
        place: dict[str, Any] = {"gguf_file": "model.gguf", "local_files_only": True}
        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(alone, **place)
        except (ValueError, KeyError, IndexError, TypeError, OSError) as error:
            raise ModelRefused(
                f"transformers cannot read the tokenizer of {header.path}: {error!r}"
            ) from error
    split = header.metadata.get("tokenizer.ggml.pre")
    tokenizer = _with_turns(tokenizer)
    if split in OWN_SPLITS:
        parts: list[Any] = [pre_tokenizers.Split(Regex(r), "isolated") for r in OWN_SPLITS[split]]
        if not any("{N}" in expression for expression in OWN_SPLITS[split]):
            parts.append(pre_tokenizers.Digits(individual_digits=True))
        parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    if split in SINGLE_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    return tokenizer


def _with_turns(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Return the tokenizer with DeepSeek's tokens for turns, which transformers spells out as bytes
    and, where it needs them, adds once more behind the vocabulary."""
    spelled = {
        token: decoders.ByteLevel().decode([token])
        for token in tokenizer.get_vocab()
        if token.startswith(_OPENS) and token.endswith(_CLOSES)
    }
    if not spelled:
        return tokenizer
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = {spelled.get(t, t): index for t, index in state["model"]["vocab"].items()}
    state["model"]["vocab"] = vocabulary
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    turns = [
        {"id": vocabulary[t], "content": t, "special": True, **flags} for t in spelled.values()
    ]
    others = [t for t in state["added_tokens"] if t["content"] not in spelled.values()]
    state["added_tokens"] = sorted([*turns, *others], key=lambda token: token["id"])
    whole = Tokenizer.from_str(json.dumps(state))
    return type(tokenizer)(tokenizer_object=whole, **tokenizer.init_kwargs)


def _ends(header: GgufHeader, tokenizer: PreTrainedTokenizerFast) -> int | list[int] | None:
    """Return ids of the tokens that end an answer, as config.json has them."""
    template, known = header.metadata.get("tokenizer.chat_template", ""), tokenizer.get_vocab()
    found = [header.metadata.get(f"tokenizer.ggml.{key}") for key in _ENDS]
    for text in _ENDS_OF_TURNS:
        # gpt-oss ends a message with <|end|>, and an answer may go on after it.
        if text in template and not (text == "<|end|>" and "<|return|>" in known):
            found.append(known.get(text))
    ends = list(dict.fromkeys(i for i in found if i is not None))
    return ends if len(ends) > 1 else next(iter(ends), None)


def main(source: str, folder: str, dtype: str) -> int:
    os.umask(0o077)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        convert(Path(source), Path(folder), getattr(torch, dtype))
    except ModelRefused as error:
        print(json.dumps({"fault": error.message}))
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
