"""Writes a model folder with random weights, to measure the times of a larger model.

The demo model is so small that the fixed costs of a request hide what a method saves. The answers
of a random model mean nothing. Tokenizer and prompt format are those of the demo, so its corpus has
the same number of tokens. Needs torch and transformers.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from loadtest.errors import InvalidInput

HEAD_DIM = 64
CONTEXT = 4096
COPIED = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class ModelShape:
    """The size of a Llama model: heads of 64 channels, one KV head for four heads, FFN 2.75 times.

    Attributes:
        hidden: hidden size.
        layers: number of layers.
    """

    hidden: int
    layers: int

    @classmethod
    def parse(cls, text: str) -> ModelShape:
        """Parse a text like `512x12`.

        Raises:
            InvalidInput: it has another form, or the size is not possible.
        """
        found = re.fullmatch(r"(\d+)x(\d+)", text)
        if not found:
            raise InvalidInput(f"{text!r}: a shape is HIDDENxLAYERS, e.g. 512x12")
        shape = cls(*map(int, found.groups()))
        if shape.hidden % (4 * HEAD_DIM) or not shape.hidden or not shape.layers:
            raise InvalidInput(f"{text!r}: hidden must be a multiple of {4 * HEAD_DIM}")
        return shape

    def __str__(self) -> str:
        return f"random-{self.hidden}x{self.layers}"


def write_model(folder: Path, shape: ModelShape, demo_model: Path, seed: int = 0) -> Path:
    """Write config, random bf16 weights and the demo's tokenizer into `folder`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        shutil.copyfile(demo_model / name, folder / name)
    # Without stop strings and end token, every answer has exactly `max_tokens` tokens.
    prompt = json.loads((demo_model / "kvstitch.json").read_text())
    (folder / "kvstitch.json").write_text(json.dumps({**prompt, "stop": []}, indent=2) + "\n")
    vocabulary = json.loads((demo_model / "config.json").read_text())["vocab_size"]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.hidden * 11 // 4,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // HEAD_DIM,
        num_key_value_heads=shape.hidden // (4 * HEAD_DIM),
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # billions of numbers
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder
