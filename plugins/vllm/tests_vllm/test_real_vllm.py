"""vLLM itself, for CPUs, in every release that is installed (scripts/install-vllm.sh)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvstitch_vllm.segment import PLACE
from tests.e2e.models import demo
from tests.e2e.service import Service
from tests.ports import free_port

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
PLUGIN = str(ROOT / "plugins" / "vllm")
START_S = 600.0
BLOCKS = 24  # of 128 tokens on a CPU: answers of many at once do not fit, and some are preempted
STREAMS, ANSWER = 64, 80
QUESTIONS = ("Who pays on Friday?", "Where is the river?", "Which colour is the coat?",
             "What does the company sell?", "Who keeps a goat?", "When is it closed?")  # fmt: skip
METHODS = ("vanilla", "question_scout", "pie")
CONNECTOR = {"kv_connector": "StitchedKv", "kv_connector_module_path": "kvstitch_vllm.connector",
             "kv_role": "kv_consumer", "kv_load_failure_policy": "recompute"}  # fmt: skip


class RealVllm:
    """A server of one release."""

    def __init__(self, python: Path, model: Path, log: Path, ranks: int = 1) -> None:
        self.port, self._log = free_port(), log
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
            *("--port", str(self.port), "--host", "127.0.0.1", "--dtype", "float32"),
            *("--max-model-len", "1024", "--enforce-eager", "--enable-prompt-tokens-details"),
            *("--tensor-parallel-size", str(ranks), "--num-gpu-blocks-override", str(BLOCKS)),
            *("--structured-outputs-config", json.dumps({"backend": "guidance"})),
            *("--kv-transfer-config", json.dumps(CONNECTOR)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        set_ = {"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": PLUGIN, "VLLM_NO_USAGE_STATS": "1"}
        if "tensor-parallel-size 2" in " ".join(self._command[1:]):
            set_ |= {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=os.environ | set_, start_new_session=True
            )
        give_up_at = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                self.kill_nine()
                pytest.fail(self.log())
            time.sleep(1.0)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0).status_code == 200
        except httpx.TransportError:
            return False

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def running(self) -> float:
        return self.metric("num_requests_running")

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.url}/metrics", timeout=30.0).text.splitlines()
        (line,) = [x for x in lines if x.startswith(f"vllm:{name}{{")]
        return float(line.split()[-1])

    def kill_nine(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo(tmp_path_factory.mktemp("model") / "demo")


def _releases() -> list[Path]:
    return sorted(ROOT.glob("build/vllm-*/bin/python")) or [Path("absent")]


def newest() -> Path:
    python = _releases()[-1]
    if not python.is_file():
        pytest.skip("vLLM is not installed: scripts/install-vllm.sh")
    return python


@pytest.fixture(scope="module", params=_releases(), ids=lambda python: python.parts[-3:][0])
def vllm(
    request: pytest.FixtureRequest, endless: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealVllm]:
    if not request.param.is_file():
        pytest.skip("vLLM is not installed: scripts/install-vllm.sh")
    server = RealVllm(request.param, endless, tmp_path_factory.mktemp("vllm") / "log")
    server.start()
    yield server
    server.kill_nine()


@pytest.fixture(scope="module")
def service(
    vllm: RealVllm, endless: Path, twelve: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    settings = {"engine": "vllm", "engine_url": vllm.url, "dtype": "float32",
                "engine_timeout_s": 600.0}  # fmt: skip
    with Service(endless, tmp_path_factory.mktemp("it") / "data", **settings) as running:
        running.ingest(twelve)
        yield running


@pytest.fixture(scope="module")
def own(
    endless: Path, twelve: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], str]:
    """Texts of the service's own engine."""
    with Service(endless, tmp_path_factory.mktemp("own") / "data", dtype="float32") as running:
        running.ingest(twelve)
        return {
            (m, q): running.ask(q, fusion={"method": m})["text"] for m in METHODS for q in QUESTIONS
        }


def segments() -> list[str]:
    found = (str(p.relative_to("/dev/shm")) for p in Path("/dev/shm").glob("kvstitch-*/*"))
    return [place for place in found if PLACE.fullmatch(place)]


def test_it_answers_as_the_own_engine_does(service, vllm, own):
    """Also exactly after approximate KV of the same prompt: vLLM's prefix cache keeps none."""
    before = segments()
    same = 0
    for question in QUESTIONS:
        for method in reversed(METHODS):
            answer = service.ask(question, fusion={"method": method})
            assert answer["warnings"] == [], vllm.log()
            same += answer["text"] == own[method, question]
    assert same >= len(METHODS) * len(QUESTIONS) - 1
    service.until(lambda: len(segments()) <= len(before), "a segment is left")


def test_forms_and_samples_are_vllms(service):
    schema = {"type": "object", "properties": {"day": {"enum": ["Monday", "Friday"]}},
              "required": ["day"], "additionalProperties": False}  # fmt: skip
    said = service.ask(QUESTIONS[0], guided={"json_schema": schema}, max_tokens=40)["text"]
    assert json.loads(said)["day"] in ("Monday", "Friday")
    assert service.ask(QUESTIONS[0], guided={"choice": ["yes", "no"]})["text"].strip() in (
        "yes", "no",
    )  # fmt: skip
    fields = {"temperature": 1.0, "seed": 3, "logprobs": 2, "max_tokens": 8}
    first, second = (service.ask(QUESTIONS[1], **fields) for _ in range(2))
    assert first["text"] == second["text"] and len(first["logprobs"][0]["top_logprobs"]) == 2


def test_a_client_that_leaves_ends_it_in_vllm(service, vllm):
    with service.stream(QUESTIONS[0], max_tokens=400) as events:
        next(e for e in events if e[0] == "token")
    service.until(lambda: vllm.running() == 0, "vLLM goes on")


def test_many_at_once_are_preempted_and_leave(service, vllm):
    """Every answer is complete, though vLLM takes its blocks away in between; half of the clients
    leave after some tokens. Nothing is left on either side."""
    before = segments()
    alone = {q: service.ask(q, fusion={"method": "vanilla"}, max_tokens=ANSWER) for q in QUESTIONS}

    def one(number: int) -> str | None:
        question = QUESTIONS[number % len(QUESTIONS)]
        fields = {"fusion": {"method": METHODS[number % len(METHODS)]}, "max_tokens": ANSWER}
        text = ""
        with service.stream(question, **fields) as events:
            for count, (name, content) in enumerate(events):
                if number % 2 and count > number % 7:
                    return None
                assert name != "error", content
                if name == "done":
                    assert content["usage"]["completion_tokens"] == ANSWER
                text += content.get("text", "") if name == "token" else ""
        vanilla = METHODS[number % len(METHODS)] == "vanilla"
        return text.strip() if vanilla and text.strip() != alone[question]["text"] else ""

    with ThreadPoolExecutor(STREAMS) as pool:
        found = list(pool.map(one, range(STREAMS)))
    assert sum(each is None for each in found) == STREAMS // 2
    assert vllm.metric("num_preemptions_total") > 0
    assert sum(bool(each) for each in found) <= 1  # batches of other sizes round otherwise
    service.until(lambda: len(segments()) <= len(before), "a segment is left")
    service.until(lambda: vllm.running() + vllm.metric("num_requests_waiting") == 0, "vLLM goes on")
    assert vllm.metric("kv_cache_usage_perc") == 0
    assert service.ask(QUESTIONS[0], max_tokens=4)["warnings"] == []


def test_vllm_is_killed_midway(service, vllm):
    with service.stream(QUESTIONS[0], max_tokens=400) as events:
        next(e for e in events if e[0] == "token")
        vllm.kill_nine()
        *_, (name, error) = events
    assert (name, error["error"]["code"]) == ("error", "worker_unavailable")
    assert service.post(QUESTIONS[0]).status_code == 503
    vllm.start()
    service.until(lambda: service.post(QUESTIONS[0]).status_code == 200, "it is not back")


def test_two_ranks_have_their_heads(vllm, own, endless, twelve, tmp_path):
    vllm.kill_nine()
    python = Path(vllm._command[0])
    split = RealVllm(python, endless, tmp_path / "log", ranks=2)
    try:
        split.start()
        settings = {"engine": "vllm", "engine_url": split.url, "dtype": "float32"}
        with Service(endless, tmp_path / "data", **settings) as running:
            running.ingest(twelve)
            same = 0
            for question in QUESTIONS:
                answer = running.ask(question, fusion={"method": "question_scout"})
                assert answer["warnings"] == [], split.log()
                same += answer["text"] == own["question_scout", question]
            assert same >= len(QUESTIONS) - 1
    finally:
        split.kill_nine()
