"""vLLM's load tool: how it is started, and what is made of its report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import bench_serve
from benchmarks.peers.bench_serve import first_text, main, measured, page, per_token, rows
from benchmarks.peers.servers.vllm import NAME as VLLM
from benchmarks.peers.servers.vllm import PYTHON
from tests.benchmarks.peers.streaming_server import StreamingPeer, streaming

REPORT = {
    "ttfts": [0.01, 0.02],
    "itls": [[1.0, 0.1, 0.2], [2.0, 0.3, 0.1]],
    "output_lens": [3, 3],
    "input_lens": [540, 543],
    "output_throughput": 7.5,
    "median_ttft_ms": 15.0,
    "failed": 0,
}
TOOL = """#!{python}
import json, sys
given = sys.argv[1:]
if {fails}:
    sys.exit("no such dataset")
folder, name = (given[given.index(x) + 1] for x in ("--result-dir", "--result-filename"))
with open(folder + "/" + name, "w") as file:
    json.dump({report} | {{"given": given}}, file)
"""


def stand_in(folder: Path, *, fails: bool = False) -> Path:
    """A program in the place of a Python with vLLM: it writes a report with its arguments."""
    path = folder / "python"
    path.write_text(TOOL.format(python=sys.executable, fails=fails, report=REPORT))
    path.chmod(0o755)
    return path


class Arguments:
    model = Path("/models/m")
    max_tokens = 3
    prompts = 2


def test_the_tool_is_asked_for_chats_and_its_report_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, str(stand_in(tmp_path)))
    given = {}
    with streaming() as server:
        for name in (VLLM, "kvstitch question_scout"):
            peer: Any = StreamingPeer(name, server.url)
            report = measured(Arguments(), peer, "random", 8, 7, tmp_path)  # type: ignore[arg-type]
            assert report["median_ttft_ms"] == 15.0 and report["tokenizer_id"] == "m"
            given[name] = " ".join(report["given"])
    for text in given.values():
        assert f"--base-url {server.url} --endpoint /v1/chat/completions --model any" in text
        assert "--random-input-len 512 --random-output-len 3" in text
        assert "--num-prompts 2 --max-concurrency 8 --seed 7" in text
    assert "--ignore-eos" in given[VLLM]
    assert '{"kvstitch": {"top_k": 0}}' in given["kvstitch question_scout"]


def test_a_tool_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, str(stand_in(tmp_path, fails=True)))
    peer: Any = StreamingPeer(VLLM)
    with streaming() as server:
        peer.url = server.url
        with pytest.raises(RuntimeError, match="no such dataset"):
            measured(Arguments(), peer, "random", 1, 7, tmp_path)  # type: ignore[arg-type]
    monkeypatch.delenv(PYTHON)
    with pytest.raises(SystemExit):
        main(["--model", "m"])


def test_ttft_is_to_the_first_chunk_with_text() -> None:
    assert first_text(REPORT) == pytest.approx([1.01, 2.02])
    assert per_token(REPORT) == pytest.approx([0.15, 0.2])
    assert first_text({"ttfts": [1.0], "itls": [[]]}) == []  # it failed


def test_the_page_has_a_row_per_run() -> None:
    runs = [
        {"server": name, "dataset": dataset, "concurrency": concurrency, "report": REPORT}
        for dataset in bench_serve.DATASETS
        for concurrency in (8, 1)
        for name in (VLLM, "kvstitch")
    ]
    machine = {"cpu": "a CPU", "cores": 2, "python": "3.11", "packages": {}}
    machine |= {"commit": "c0ffee", "uncommitted": True}
    result = {
        **{"model": "m", "threads": 2, "cache_mib": 64, "prompts": 2, "max_tokens": 3, "seed": 1},
        **{"environment": machine, "servers": {}, "left_out": {"x": "why"}, "runs": runs},
    }
    lines = rows(result).splitlines()
    assert lines[2].startswith("| 512 random tokens | 1 | vLLM | 1515 [1262, 1768] | 175 [")
    assert lines[2].endswith("| 7.5 | 15 |")
    assert [line.split(" | ")[1] for line in lines[2:10]] == ["1", "1", "8", "8"] * 2
    text = page(result)
    assert "Prompts of 540 to 543 tokens." in text and "c0ffee with changes" in text
    assert "x was left out: why" in text
