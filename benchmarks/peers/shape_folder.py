"""Writes a model folder with random weights in the shape of a larger model, for `benchmarks.peers`.

    python -m benchmarks.peers.shape_folder --like qwen2.5-0.5b --tokenizer FOLDER --out FOLDER

Sizes and times are those of the real one; answers mean nothing. It is a Llama, which every peer
serves, so a Qwen2 shape lacks its three biases per layer. Tokenizer and prompt format are those of
the model folder that is given; ids that its tokenizer does not have become unused tokens.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.common.shapes import QWEN2, sizes

TAKEN = ("tokenizer_config.json", "kvstitch.json", "chat_template.jinja")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.shape_folder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--like", choices=sorted(QWEN2), default="qwen2.5-0.5b")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a model folder")
    parser.add_argument("--out", type=Path, required=True, help="a folder that is made")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write_folder(sizes(args.like), args.tokenizer, args.out, seed=args.seed)


def write_folder(numbers: dict[str, int], tokenizer: Path, out: Path, *, seed: int = 0) -> None:
    """Writes the folder.

    Args:
        numbers: sizes, with the names of transformers' config.
        tokenizer: the model folder that lends tokenizer and prompt format.
        out: the folder, which must not be there.
        seed: of the weights.
    """
    out.mkdir(parents=True)
    ends = json.loads((tokenizer / "config.json").read_text("utf-8"))
    config = LlamaConfig(
        **numbers,
        head_dim=numbers["hidden_size"] // numbers["num_attention_heads"],
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
        bos_token_id=ends["bos_token_id"],
        eos_token_id=ends["eos_token_id"],
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    for name in TAKEN:
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, out / name)
    raw = json.loads((tokenizer / "tokenizer.json").read_text("utf-8"))
    fill_vocabulary(raw, numbers["vocab_size"])
    (out / "tokenizer.json").write_text(json.dumps(raw), encoding="utf-8")


def fill_vocabulary(raw: dict[str, Any], size: int) -> None:
    """Gives every id below `size` a token that no text is turned into."""
    vocabulary: dict[str, int] = raw["model"]["vocab"]
    known = set(vocabulary.values()) | {each["id"] for each in raw["added_tokens"]}
    vocabulary.update({f"[unused{place}]": place for place in range(size) if place not in known})


if __name__ == "__main__":
    main()
