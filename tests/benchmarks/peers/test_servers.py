"""Servers as processes, and a folder's weights as GGUF."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from benchmarks.peers.gguf_file import interleaved, write_gguf
from benchmarks.peers.processes import Absent, Ended, ServerProcess, free_port
from benchmarks.peers.servers.peer import Conditions
from tests.service.worker.tiny import random_model, tiny_config


def test_a_process_is_started_watched_and_stopped(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    process = ServerProcess(
        command, f"http://127.0.0.1:{port}/", tmp_path / "log", folder=tmp_path
    )  # fmt: skip
    process.start()
    try:
        process.rest()
        [pid] = process.pids()
        assert process.cpu_s() > 0 and process.memory_mib() > 1
    finally:
        process.stop()
    assert not Path(f"/proc/{pid}").exists()
    process.stop()  # nothing to do


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ([sys.executable, "-c", "raise SystemExit('no such model')"], "no such model"),
        (["/no/such/program"], "No such file"),
    ],
)
def test_a_process_that_does_not_start_says_why(
    command: list[str], why: str, tmp_path: Path
) -> None:
    process = ServerProcess(command, f"http://127.0.0.1:{free_port()}/", tmp_path / "log")
    with pytest.raises(Absent, match=why):
        process.start()
    process.stop()


def test_gguf_holds_the_same_weights(tmp_path: Path) -> None:
    config = tiny_config("llama", attention_bias=False, mlp_bias=False)
    model = random_model(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    tokens = {f"w{n}": n for n in range(101)}
    added = [{"id": 0, "content": "<end>"}]
    words = {"added_tokens": added, "model": {"vocab": tokens, "merges": [["w", "1"]]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    write_gguf(tmp_path, tmp_path / "model.gguf")
    read = gguf.GGUFReader(tmp_path / "model.gguf")
    found = {tensor.name: tensor for tensor in read.tensors}
    weights = model.state_dict()
    assert len(found) == len(weights)
    same(found["token_embd.weight"], weights["model.embed_tokens.weight"])
    same(found["blk.3.ffn_down.weight"], weights["model.layers.3.mlp.down_proj.weight"])
    key = weights["model.layers.2.self_attn.k_proj.weight"]
    same(found["blk.2.attn_k.weight"], interleaved(key, 2))
    assert not torch.equal(interleaved(key, 2), key)
    norm = found["output_norm.weight"].data
    assert torch.equal(torch.tensor(norm), weights["model.norm.weight"].float())
    assert read.fields["llama.attention.head_count_kv"].contents() == 2


def same(tensor: Any, weight: torch.Tensor) -> None:
    numbers = torch.tensor(tensor.data).view(torch.bfloat16).reshape(weight.shape)
    assert torch.equal(numbers, weight)


def test_rows_of_a_head_take_turns() -> None:
    rows = torch.arange(8).reshape(8, 1)
    assert interleaved(rows, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize(
    ("family", "why"), [("qwen3", "only a Llama model"), ("llama", "no place for")]
)
def test_what_gguf_has_no_place_for_is_refused(family: str, why: str, tmp_path: Path) -> None:
    random_model(tiny_config(family)).save_pretrained(tmp_path)  # this Llama has biases
    words = {"added_tokens": [], "model": {"vocab": {}, "merges": []}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(ValueError, match=why):
        write_gguf(tmp_path, tmp_path / "model.gguf")


def test_a_process_that_is_gone_is_noticed(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    process = ServerProcess(command, f"http://127.0.0.1:{port}/", tmp_path / "log")
    process.start()
    try:
        os.kill(process.pids()[0], signal.SIGKILL)
        os.waitid(os.P_PID, process.pids()[0], os.WEXITED | os.WNOWAIT)
        with pytest.raises(Ended, match="exit status -9"):
            process.rest()
    finally:
        process.stop()


def test_kv_bytes_of_a_token(tmp_path: Path) -> None:
    config = tiny_config("llama")
    config.save_pretrained(tmp_path)
    expected = 2 * 5 * 2 * config.head_dim * 2  # K and V, layers, KV heads, numbers, bytes
    assert Conditions(tmp_path, tmp_path).kv_bytes_per_token == expected
