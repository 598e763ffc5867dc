"""Runner and locust users against a real service: processes, sockets, the demo's model."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest

from loadtest.__main__ import main
from loadtest.command_line import DEMO
from loadtest.measurement.request_record import OK
from loadtest.rate_sweep import StepRunner, StepSettings
from loadtest.reporting.run_summary import Slo
from loadtest.sending.streaming_client import StreamingClient
from loadtest.traffic.corpus_reader import CorpusQuestion
from loadtest.traffic.routes import ChatRoute, CorpusDocument, MethodUnderTest, RagRoute, Route
from loadtest.traffic.trace_replay import Scheduled
from loadtest.traffic.workloads import Zipf
from tests.e2e.service import Service

LOCUSTFILE = Path(__file__).parents[2] / "loadtest" / "locustfile.py"
PATIENT = StepSettings(step_s=2.0, warmup_s=0.0, patience_s=60.0, max_lag_s=10.0)


def chat(service: Service) -> Route:
    return ChatRoute()


def plain(service: Service) -> Route:
    """As any OpenAI-like server is asked, by the name that it lists."""
    return ChatRoute(service.http.get("/v1/models").json()["data"][0]["id"], plain=True)


def rag(service: Service) -> Route:
    return RagRoute()


@pytest.mark.parametrize("route_of", [rag, chat, plain])
async def test_a_few_requests_by_each_route(
    service: Service,
    documents: list[CorpusDocument],
    questions: list[CorpusQuestion],
    route_of: Callable[[Service], Route],
) -> None:
    route = route_of(service)
    zipf = Zipf(documents, questions, 4, max_tokens=6)
    scheduled = [
        Scheduled(0.1 * index, request) for index, request in enumerate(islice(zipf.requests(1), 5))
    ]
    method = MethodUnderTest("as served") if route_of is plain else MethodUnderTest.parse("a3:0.2")
    async with StreamingClient(str(service.http.base_url), route) as client:
        driver = StepRunner(client, route, PATIENT, Slo(ttft_s=60.0))
        figures, records = await driver.step(scheduled, method, 2.0)
    assert [record.outcome for record in records] == [OK] * 5, figures["error_messages"]
    assert figures["slo_attainment"] == 1.0 and figures["failed"] == 0
    assert figures["total_output_tokens"] == 5 * 6
    for record in records:
        assert record.ttft_s is not None and record.e2e_s is not None and record.tpot_s is not None
        # The same stream, so the same clock: token after token, then the end.
        assert 0 < record.ttft_s <= record.ttft_s + sum(record.itl_s) <= record.e2e_s
    if route_of is not plain:
        # The documents were stored, and are the same ones however they come.
        assert figures["hit_tokens"]["memory"] > 0 and figures["cold_tokens"] == 0
        assert figures["recomputed_tokens"] > 0


@pytest.mark.slow
def test_a_sweep_from_the_command_line(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two methods at two rates; what is written can be read without anything else."""
    code = main(
        [
            *("--url", str(service.http.base_url), "--documents", "3", "--max-tokens", "3"),
            *("--methods", "vanilla", "a3:0.2", "--rates", "3", "6", "--ttft-ms", "60000"),
            *("--step-s", "2", "--warmup-s", "0", "--max-lag-ms", "10000"),
            *("--out", str(tmp_path), "--note", "a note"),
        ]
    )
    assert code == 0
    result = json.loads((tmp_path / "load.json").read_text())
    order = [(step["rate"], step["method"]) for step in result["steps"]]
    # The method that goes first turns.
    assert order == [(3.0, "vanilla"), (3.0, "a3:0.2"), (6.0, "a3:0.2"), (6.0, "vanilla")]
    by_step = {place: step for place, step in zip(order, result["steps"], strict=True)}
    for rate in (3.0, 6.0):
        sent = {by_step[rate, method]["sent"] for method in ("vanilla", "a3:0.2")}
        assert len(sent) == 1 and sent.pop() > 0
    assert all(step["failed"] == 0 for step in result["steps"])
    # Full prefill reads nothing.
    assert by_step[3.0, "vanilla"]["token_hit_rate"] == 0
    assert result["knees"]["a3:0.2"] == {
        "rate": 6.0, "crossing": None, "further_right": None, "at_least": False
    }  # fmt: skip
    records = json.loads(gzip.decompress((tmp_path / "load.records.json.gz").read_bytes()))
    assert len(records["a3:0.2@6"]) == by_step[6.0, "a3:0.2"]["sent"]
    at = {name: [r["at_s"] for r in rows] for name, rows in records.items()}
    assert at["a3:0.2@6"] == at["vanilla@6"] != at["vanilla@3"]
    shown = capsys.readouterr().out
    assert "TTFT ≤ 60000 ms" in shown and "- a note" in shown
    html = (tmp_path / "load.html").read_text()
    assert "data:image/png;base64," in html
    # Nothing is loaded from elsewhere.
    assert not re.search(r'(src|href)="(?!data:)', html) and "@import" not in html


def test_a_trace_from_the_command_line(service: Service, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 400 * n, "output_length": 2, "hash_ids": [0, n % 2]} for n in range(4)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = main(
        [
            *("--url", str(service.http.base_url), "--workload", "trace", "--trace", str(trace)),
            *("--methods", "a3", "--speed", "2", "--patience-s", "60", "--max-lag-ms", "10000"),
            *("--out", str(tmp_path), "--block-words", "40"),
        ]
    )
    assert code == 0
    (step,) = json.loads((tmp_path / "load.json").read_text())["steps"]
    assert (step["sent"], step["completed"]) == (4, 4)
    records = json.loads(gzip.decompress((tmp_path / "load.records.json.gz").read_bytes()))
    assert [r["at_s"] for r in records["a3"]] == [0.0, 0.2, 0.4, 0.6]


def test_what_cannot_be_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9", "--out", str(tmp_path)]) == 1
    assert "http://127.0.0.1:9/v1/models" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--patience-s", "1", "--e2e-ms", "3000"), "cuts answers that would still be good"),
        (("--warmup-s", "9", "--step-s", "5"), "leaves nothing"),
        (("--workload", "trace"), "needs --trace"),
        (("--documents", "99"), "the corpus has 72"),
    ],
)
def test_settings_that_contradict_themselves(
    service: Service,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    given: tuple[str, ...],
    says: str,
) -> None:
    url = str(service.http.base_url)
    assert main(["--url", url, "--methods", "pie", "--out", str(tmp_path), *given]) == 1
    assert says in capsys.readouterr().err


def test_a_method_that_is_refused_ends_the_run(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--url", str(service.http.base_url), "--methods", "nonsense", "--out", str(tmp_path)]
    assert main(given) == 1
    assert "nonsense: HTTP 4" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(find_spec("locust") is None, reason="locust is not installed (an extra)")
def test_locust_users_of_both_routes(service: Service, tmp_path: Path) -> None:
    """Some seconds: requests, TTFT and TPOT are three rows for each route, without a failure."""
    # In a process of its own: importing locust replaces parts of the standard library. Elsewhere
    # than in the repository: as in the image, the file has to find what it needs.
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE)]
    command += ["--headless", "--users", "2", "--spawn-rate", "2", "--run-time", "12s"]
    command += ["--host", str(service.http.base_url), "--csv", str(tmp_path / "stats")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["KVSTITCH_QUESTIONS"] = str(DEMO / "questions.jsonl")
    environment["KVSTITCH_REQUEST"] = '{"max_tokens": 8, "top_k": 2}'
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "stats_stats.csv").open() as file:
        rows = {(row["Type"], row["Name"]): row for row in csv.DictReader(file)}
    for path in ("/v1/rag/generate", "/v1/chat/completions"):
        mean = {}
        for kind in ("POST", "TTFT", "TPOT"):
            row = rows[kind, path]
            assert int(row["Request Count"]) > 0 and int(row["Failure Count"]) == 0, row
            mean[kind] = float(row["Average Response Time"])
        assert mean["TPOT"] < mean["TTFT"] < mean["POST"]
