"""A whole small run over real sockets: turns, the file, the table, and who is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from benchmarks.peers.asking import OK, Sample
from benchmarks.peers.comparison import Comparison
from benchmarks.peers.prompts import Prompt
from benchmarks.peers.results import Result
from benchmarks.peers.servers.kvstitch import VANILLA
from benchmarks.peers.servers.peer import About, Conditions
from benchmarks.peers.servers.vllm import NAME as VLLM
from benchmarks.peers.servers.vllm import PYTHON, VllmServer
from benchmarks.peers.starting import start_all
from benchmarks.peers.table import base_of, page, ratios
from benchmarks.peers.workloads import REPEATED, SHUFFLED
from tests.benchmarks.peers.made import rounds
from tests.benchmarks.peers.streaming_server import StreamingPeer, streaming

CONDITIONS = {
    "model": "m",
    "threads": 2,
    "documents": 5,
    "corpus": 24,
    "max_tokens": 4,
    "cache_mib": 1024,
    "seed": 1,
    "environment": {
        "cpu": "a CPU",
        "cores": 2,
        "python": "3",
        "commit": "c0ffee",
        "uncommitted": False,
    },
}


def test_every_server_gets_every_prompt_and_each_is_first_in_turn(tmp_path: Path) -> None:
    with streaming() as one, streaming() as two:
        peers = [
            StreamingPeer("one", one.url),
            StreamingPeer("none", missing="it is not installed"),
            StreamingPeer("two", two.url),
        ]
        running, absent = start_all(peers, lambda text: None)
        result = Result(CONDITIONS, {p.name: p.about() for p in running}, absent)
        comparison, turns = Comparison(running, 4), count()
        for prompt in next(rounds().made(1)):
            result.prompts.append(prompt)
            result.samples += comparison.asked(prompt, next(turns))
    assert [body["prompt"] for body in one.bodies] == [body["prompt"] for body in two.bodies]
    assert [s.contestant for s in result.samples if s.place == 0] == ["one", "two"] * 3
    assert not result.failures() and absent == {"none": "it is not installed"}
    result.write(tmp_path / "out" / "peers.json")
    written = json.loads((tmp_path / "out" / "peers.json").read_text())
    assert len(written["samples"]) == 12 and len(written["prompts"]) == 6
    assert written["left_out"] == absent
    assert written["environment"]["commit"] == "c0ffee"
    read = Result.read(tmp_path / "out" / "peers.json")
    assert [s.to_json() for s in read.samples] == [s.to_json() for s in result.samples]
    text = page(read)
    read.write(tmp_path / "out" / "peers.json")
    assert page(Result.read(tmp_path / "out" / "peers.json")) == text
    assert "none was left out: it is not installed." in text
    assert "c0ffee" in text and "| one | 1 | none |" in text


def test_vllm_without_its_python_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PYTHON, raising=False)
    peer = VllmServer(Conditions(tmp_path, tmp_path))
    running, absent = start_all([peer], lambda text: None)
    assert not running and PYTHON in absent[VLLM]


def test_vllm_takes_its_own_default_of_tokens_a_step_or_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, "python")
    assert "--max-num-batched-tokens" not in VllmServer(Conditions(tmp_path, tmp_path)).command(1)
    given = VllmServer(Conditions(tmp_path, tmp_path, step_tokens=512)).command(1)
    assert given[given.index("--max-num-batched-tokens") + 1] == "512"


def sample(key: str, name: str, ttft_s: float, text: str = "yes") -> Sample:
    return Sample(key, name, 0, OK, ttft_s=ttft_s, e2e_s=1.0, tpot_s=0.02, text=text)


def made_result() -> Result:
    about = {name: About("1", "none") for name in (VLLM, VANILLA, "kvstitch pie")}
    result = Result(CONDITIONS, about, {"llama.cpp": "there is no llama-server"})
    for number in range(3):
        for workload, ours in ((SHUFFLED, 0.25), (REPEATED, 4.0)):
            key = f"{number} {workload}"
            result.prompts.append(Prompt(key, workload, (), (), (1, 2)))
            base = 1.0 + number  # a machine that gets slower for all
            result.samples += [
                sample(key, VLLM, base),
                sample(key, VANILLA, 2 * base),
                sample(key, "kvstitch pie", ours * base, "no" if number else "yes"),
            ]
    return result


def test_the_table_is_of_ratios_prompt_by_prompt_and_says_who_is_ahead() -> None:
    rows = ratios(made_result()).splitlines()
    assert rows[0].startswith("| TTFT over vLLM's | prompts | vLLM | kvstitch vanilla |")
    shuffled, repeated = rows[2], rows[5]
    assert "| 3 | 1.00 [1.00, 1.00] | 2.00 [2.00, 2.00] | 0.25 [0.25, 0.25] |" in shuffled
    assert shuffled.endswith("| kvstitch pie |")
    assert "| 4.00 [4.00, 4.00] |" in repeated and repeated.endswith("| vLLM |")
    assert rows[3].count("–") >= 4  # not measured, and said so
    assert "llama.cpp was left out: there is no llama-server." in "\n".join(rows)


def test_who_is_within_a_tenth_is_ahead_too() -> None:
    result = made_result()
    result.samples = [
        replace(one, ttft_s=(one.ttft_s or 0) / 3.9) if one.contestant == "kvstitch pie" else one
        for one in result.samples
    ]
    assert ratios(result).splitlines()[5].endswith("| vLLM, kvstitch pie |")


def test_the_page_tells_how_often_answers_are_full_prefills() -> None:
    text = page(made_result())
    answers = text.split("## Answers")[1].split("##")[0]
    assert "| 100% | 100% | 33% |" in answers


def test_failed_requests_are_not_counted_but_told() -> None:
    result = made_result()
    result.samples[0] = Sample(result.samples[0].prompt, VLLM, 0, error="HTTP 500")
    text = ratios(result)
    assert "1 requests failed and are not counted:" in text
    assert f"- prompt 0 {SHUFFLED}, vLLM: HTTP 500" in text
    assert "| 2 | 1.00 [1.00, 1.00] |" in text


def test_without_vllm_ratios_are_to_full_prefill() -> None:
    assert base_of(["llama.cpp", VANILLA]) == VANILLA
    assert base_of(["llama.cpp"]) == "llama.cpp"
    assert base_of([]) is None
