from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from loadtest.command_line import DEMO_MODEL
from loadtest.traffic.random_model import ModelShape, write_model


def test_a_shape_is_a_model_folder(tmp_path: Path) -> None:
    """It loads, its vocabulary is the tokenizer's, and it does not end an answer by itself."""
    folder = write_model(tmp_path / "m", ModelShape.parse("256x2"), DEMO_MODEL)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (256, 2)
    assert model.config.vocab_size >= len(tokenizer) and model.config.eos_token_id is None
    again = write_model(tmp_path / "again", ModelShape.parse("256x2"), DEMO_MODEL)
    weights = (AutoModelForCausalLM.from_pretrained(f).lm_head.weight for f in (folder, again))
    assert torch.equal(*weights)


@pytest.mark.parametrize("text", ["512", "500x12", "0x12", "512x0", "x"])
def test_a_shape_that_cannot_be(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ModelShape.parse(text)
