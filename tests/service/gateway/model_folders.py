"""A model folder without weights: a tiny byte-level tokenizer and a prompt format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BOS, EOS, USER = "<s>", "</s>", "<|user|>"
FORMAT: dict[str, Any] = {
    "chunk_tokens": 128,
    "top_k": 3,
    "max_tokens": 16,
    "prefix_mode": "system",  # every chunk is stored once, which is easier to count
    "bos": BOS,
    "prompt": {
        "system": "Answer.\n",
        "document": "{title}\n{text}\n",
        "question": "Question: {question}\nAnswer:",
    },
}


def byte_tokenizer() -> Tokenizer:
    """One token per byte, plus a merge, plus special tokens: text always round-trips."""
    vocabulary = {BOS: 0, EOS: 1, USER: 2}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    vocabulary["th"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS, USER])
    return tokenizer


def make_folder(
    folder: Path,
    *,
    fmt: dict[str, Any] | None = FORMAT,
    tokenizer: Tokenizer | None = None,
    tokenizer_config: dict[str, Any] | None = None,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (tokenizer or byte_tokenizer()).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 1}))
    if fmt is not None:
        (folder / "kvstitch.json").write_text(json.dumps(fmt))
    if tokenizer_config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return folder
