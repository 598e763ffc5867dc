"""A folder in the shape of another model loads, and reads text as the lender of its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from benchmarks.peers.shape_folder import write_folder
from tests.e2e.models import DEMO as FOLDER

NUMBERS = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
}


@pytest.mark.parametrize("more", [0, 300])
def test_it_loads_and_reads_text_alike(tmp_path: Path, more: int) -> None:
    lender = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    size = lender.get_vocab_size() + more
    out = tmp_path / "shape"
    write_folder(NUMBERS | {"vocab_size": size}, FOLDER, out, seed=3)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.get_input_embeddings().weight.shape == (size, 64)
    made = Tokenizer.from_file(str(out / "tokenizer.json"))
    text = f"The goat is [unused{size - 1}] green.\n"
    assert made.encode(text).ids == lender.encode(text).ids
    assert all(made.id_to_token(place) is not None for place in range(size))
    assert json.loads((out / "config.json").read_text())["model_type"] == "llama"
