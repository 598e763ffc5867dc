"""The open loop against small real servers: the same requests for all, knees, files, the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.open_loop import NAME, brief, measure, parser
from benchmarks.peers.processes import Ended
from benchmarks.peers.servers.kvstitch import KvstitchServer, without_end
from benchmarks.peers.servers.llama import LlamaServer
from benchmarks.peers.servers.peer import Conditions
from benchmarks.peers.servers.vllm import VllmServer
from loadtest import machine
from loadtest.reporting.result_files import write
from loadtest.traffic.corpus_reader import CorpusQuestion
from loadtest.traffic.workloads import Zipf
from tests.benchmarks.peers.made import encode, sources
from tests.benchmarks.peers.streaming_server import StreamingPeer, streaming

SOURCES = sources(0, 8)
WORK = Zipf(
    [source.document for source in SOURCES],
    [CorpusQuestion(source.question, source.document.doc_id) for source in SOURCES],
    3,
    max_tokens=2,
)
GENEROUS = ["--ttft-ms", "60000", "--max-lag-ms", "60000", "--step-s", "1", "--patience-s", "60"]


class Words:
    """An encoder with a token per document and turn."""

    ids = staticmethod(encode)


def arguments(*given: str, tokens: int = 2) -> Any:
    return parser().parse_args(["--model", "m", *GENEROUS, "--max-tokens", str(tokens), *given])


async def measured(peers: list[StreamingPeer], *given: str, tokens: int = 2) -> tuple[Any, Any]:
    return await measure(arguments(*given, tokens=tokens), WORK, peers, Words())  # type: ignore[arg-type]


async def test_every_server_gets_the_same_requests_and_the_order_rotates(tmp_path: Path) -> None:
    with streaming() as one, streaming() as two:
        peers = [StreamingPeer("one", one.url), StreamingPeer("two", two.url)]
        result, raw = await measured(peers, "--rates", "3", "6")
    assert sorted(map(str, one.bodies)) == sorted(map(str, two.bodies))
    assert len(one.bodies) == 4 + 3 + 6 + 4  # without load before and after, with a first one each
    assert all(len(body["prompt"]) == 5 and body["max_tokens"] == 2 for body in one.bodies)
    order = [(step["rate"], step["method"]) for step in result["steps"]]
    assert order == [(3, "one"), (3, "two"), (6, "two"), (6, "one")]
    assert all(step["slo_attainment"] == 1.0 for step in result["steps"])
    assert result["knees"]["two"]["rate"] == 6 and result["knees"]["two"]["crossing"] is None
    assert result["notes"] == []
    write(tmp_path, NAME, result | {"machine": machine.describe(), "model": "m"}, raw)
    assert json.loads((tmp_path / "open_loop.json").read_text())["slo"]["ttft_ms"] == 60000
    assert (tmp_path / "open_loop.png").read_bytes().startswith(b"\x89PNG")
    assert "SLO: TTFT ≤ 60000 ms (as given)" in (tmp_path / "open_loop.md").read_text()
    rows = brief(result).splitlines()
    assert "highest rate with 90% good" in rows[0]
    assert rows[2].startswith("| one |") and rows[2].endswith("| 6/s | not reached | 6.00/s |")


async def test_the_requests_after_the_run_are_others_than_those_before() -> None:
    with streaming() as one:
        await measured([StreamingPeer("one", one.url)], "--rates", "1")
    before, after = one.bodies[:4], one.bodies[-4:]
    assert [body["prompt"] for body in before] != [body["prompt"] for body in after]


async def test_answers_of_another_length_are_told() -> None:
    with streaming() as one:
        peers = [StreamingPeer("one", one.url)]
        result, _ = await measured(peers, "--rates", "3", tokens=5)
    assert result["notes"] == ["3 of 3 answers had not 5 tokens"]


async def test_a_server_that_is_gone_is_told_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Gone(StreamingPeer):
        def rest(self) -> None:
            raise Ended("exit status -9")

    with streaming() as one, streaming() as two:
        peers = [Gone("one", one.url), StreamingPeer("two", two.url)]
        result, _ = await measured(peers, "--rates", "2")
    assert len(result["steps"]) == 2
    assert "one ended: exit status -9" in capsys.readouterr().err


async def test_servers_that_count_other_prompts_are_not_compared() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1}
    chunks = [{"choices": [{"text": "x"}]}, {"choices": [], "usage": usage}, "[DONE]"]
    with streaming() as one, streaming(chunks) as two:
        peers = [StreamingPeer("one", one.url), StreamingPeer("two", two.url)]
        with pytest.raises(ValueError, match="different prompts"):
            await measured(peers, "--rates", "1")
    with pytest.raises(ValueError, match="no server runs"):
        await measured([], "--rates", "1")


def test_whole_answers_are_asked_of_every_server(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"eos_token_id": 2, "vocab_size": 9}))
    (model / "weights").write_text("w")
    conditions = Conditions(model, tmp_path, whole_answers=True, slots=4)
    for server in (VllmServer(conditions), LlamaServer(conditions)):
        assert server.dialect.fields["ignore_eos"] is True
    command = KvstitchServer("pie", conditions).command(1)
    folder = Path(command[-1])
    config = json.loads((folder / "config.json").read_text())
    assert config == {"eos_token_id": None, "vocab_size": 9}
    assert (folder / "weights").read_text() == "w"
    assert without_end(model, folder) == folder  # the second server uses the same folder
    usual = Conditions(model, tmp_path)
    assert "ignore_eos" not in VllmServer(usual).dialect.fields
    assert KvstitchServer("pie", usual).command(1)[-1] == str(model)
