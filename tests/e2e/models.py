"""The model folders that are served here. What they answer does not matter, how long does: none of
them ends an answer by itself, so an answer has as many tokens as were asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig

from tests.service.worker.tiny import random_model

DEMO = Path(__file__).parents[2] / "service" / "demo_model"
FILES = ("config.json", "kvstitch.json", "tokenizer.json", "tokenizer_config.json")
PROMPT = {
    "system": "Answer the question from the documents.\n",
    "document": "{title}\n{text}\n",
    "question": "Question: {question}\nAnswer:",
}


def demo_or_tiny(folder: Path, text: list[str]) -> Path:
    """The demo model, or a random one where there is no complete demo model."""
    try:
        return demo(folder)
    except (OSError, ValueError):
        shutil.rmtree(folder, ignore_errors=True)
        return tiny(folder, text, context=1024)


def demo(folder: Path) -> Path:
    """A copy that goes on writing: no stop strings, and an end token whose logit is always 0.

    Raises OSError or ValueError if the original is not whole.
    """
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copyfile(DEMO / name, folder / name)
    try:
        weights = load_file(DEMO / "model.safetensors")
    except SafetensorError as error:
        raise ValueError(f"the demo model is not complete: {error}") from error
    config = json.loads((folder / "config.json").read_text())
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    weights[head][config["eos_token_id"]] = 0
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    _change(folder / "config.json", eos_token_id=None)
    _change(folder / "kvstitch.json", stop=[])
    return folder


def tiny(
    folder: Path,
    text: list[str],
    *,
    context: int,
    hidden: int = 64,
    intermediate: int = 96,
    layers: int = 3,
) -> Path:
    """Random weights and a byte-level BPE tokenizer trained on `text`.

    Its alphabet is ASCII, so that whatever it generates is whole characters.
    """
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = [c for c in pre_tokenizers.ByteLevel.alphabet() if c.isascii()] + ["Ġ", "Ċ"]
    specials = ["<unk>", "<s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=512, initial_alphabet=alphabet, special_tokens=specials, show_progress=False
    )
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", {"bos_token": "<s>", "unk_token": "<unk>"})
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=None,
    )
    random_model(config).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    own = {"chunk_tokens": 128, "top_k": 3, "max_tokens": 16, "prefix_mode": "system"}
    _write(folder / "kvstitch.json", {**own, "stop": [], "prompt": PROMPT})
    return folder


def _change(file: Path, **values: Any) -> None:
    _write(file, {**json.loads(file.read_text()), **values})


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n")
