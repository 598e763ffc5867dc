"""The process that `llama` starts: makes a model of random weights, fills a context, decodes.

It needs only the libraries of llama.cpp and may run in another environment, so it imports nothing
of this project. It prints "ok" when it is ready and after each command on standard input: `rewind`,
`decode STEPS`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np

BLOCK = 512  # prompt tokens per call


def write_model(path: Path, order: dict[str, int]) -> None:
    """Writes a GGUF file of this Qwen2 shape: weights in bf16, norms and biases in fp32."""
    hidden, inner = order["hidden_size"], order["intermediate_size"]
    heads, kv_heads = order["num_attention_heads"], order["num_key_value_heads"]
    layers, vocabulary = order["num_hidden_layers"], order["vocab_size"]
    narrow = hidden // heads * kv_heads
    random = np.random.default_rng(0)
    out = gguf.GGUFWriter(str(path), "qwen2")
    out.add_block_count(layers)
    out.add_context_length(32768)
    out.add_embedding_length(hidden)
    out.add_feed_forward_length(inner)
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    out.add_rope_freq_base(1_000_000.0)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    out.add_tokenizer_model("no_vocab")
    out.add_vocab_size(vocabulary)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = random.standard_normal((rows, columns), dtype=np.float32) * 0.02
        narrowed = (values.view(np.uint32) >> 16).astype(
            np.uint16
        )  # bf16 is the upper half of fp32
        kind = gguf.GGMLQuantizationType.BF16
        out.add_tensor(name, narrowed.view(np.uint8), raw_dtype=kind)

    def vector(name: str, size: int, value: float) -> None:
        out.add_tensor(name, np.full(size, value, dtype=np.float32))

    matrix("token_embd.weight", vocabulary, hidden)
    vector("output_norm.weight", hidden, 1.0)
    for layer in range(layers):
        block = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            vector(f"{block}{norm}.weight", hidden, 1.0)
        for name, rows in (("q", hidden), ("k", narrow), ("v", narrow)):
            matrix(f"{block}attn_{name}.weight", rows, hidden)
            vector(f"{block}attn_{name}.bias", rows, 0.0)
        matrix(f"{block}attn_output.weight", hidden, hidden)
        matrix(f"{block}ffn_gate.weight", inner, hidden)
        matrix(f"{block}ffn_up.weight", inner, hidden)
        matrix(f"{block}ffn_down.weight", hidden, inner)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def serve(llama: Any, context: int, vocabulary: int) -> None:
    ids = np.random.default_rng(0).integers(0, vocabulary, context).tolist()
    for at in range(0, context, BLOCK):
        llama.eval(ids[at : at + BLOCK])
    say("ok")
    for line in sys.stdin:
        command, *numbers = line.split()
        if command == "rewind":
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(llama.ctx), 0, context, -1)
            llama.n_tokens = context
        elif command == "decode":
            token = 1
            for _ in range(int(numbers[0])):
                llama.eval([token])
                logits = llama_cpp.llama_get_logits(llama.ctx)
                token = int(np.ctypeslib.as_array(logits, (vocabulary,)).argmax())
        else:
            raise SystemExit(f"no such command: {command}")
        say("ok")


def say(word: str) -> None:
    os.write(OUT, f"{word}\n".encode())


if __name__ == "__main__":
    OUT = os.dup(1)
    os.dup2(
        2, 1
    )  # the libraries print too, but only our answers may go to the real standard output
    order = json.loads(sys.argv[1])
    model = Path(order["folder"]) / "model.gguf"
    write_model(model, order)
    serve(
        llama_cpp.Llama(
            model_path=str(model),
            n_ctx=order["context"] + order["room"],
            n_batch=BLOCK,
            n_threads=order["threads"],
            n_threads_batch=order["threads"],
            verbose=False,
        ),
        order["context"],
        order["vocab_size"],
    )
