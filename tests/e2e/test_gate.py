"""The correctness gate over HTTP: a method that is broken on purpose, beside one that is not."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Documents, Serve
from tests.e2e.service import Service

BROKEN = '''
"""Puts stored keys where they do not belong. Only for the test of the gate."""

from dataclasses import dataclass

from kvstitch.service.worker.methods.api import DenseMethod


@dataclass(frozen=True)
class Method(DenseMethod):
    """Stitches documents back to front."""

    def key_positions(self, layout):
        return layout.all_rows.flip(0)
'''
CHOSEN = {"method": "backwards"}
GOOD = {"method": "infoflow"}
MIN_CHECKS = 4
QUESTIONS = [f"Which colour has number {n}?" for n in range(MIN_CHECKS + 3)]


@pytest.fixture
def methods(tmp_path: Path) -> Path:
    folder = tmp_path / "methods"
    (folder / "fusion").mkdir(parents=True)
    (folder / "fusion" / "backwards.py").write_text(BROKEN)
    return folder


def checks(service: Service, method: str) -> float:
    found = service.metrics()
    return sum(
        found.value("kvstitch_gate_checks_total", method=method, outcome=outcome)
        for outcome in ("agree", "disagree")
    )


def ask_and_check(service: Service, question: str, fusion: dict[str, Any]) -> dict[str, Any]:
    """An answer whose check is made before the next one is asked for."""
    before = checks(service, fusion["method"])
    answer = service.ask(question, fusion=fusion, max_tokens=6)
    service.until(lambda: checks(service, fusion["method"]) > before, "no check is made")
    return answer


def method_of(service: Service, name: str) -> dict[str, Any]:
    methods = service.http.get("/admin/gate").json()["methods"]
    (found,) = [m for m in methods if m["fusion"]["method"] == name]
    return dict(found)


@pytest.mark.slow
def test_a_broken_method_is_left_and_a_good_one_is_not(
    serve: Serve, methods: Path, twelve: Documents
) -> None:
    """It trips within the first judgement; from then on answers are full prefill's, and every
    place says so. Restarted, the worker finds it out again."""
    with serve(methods_dir=methods, gate_sample=1, gate_min_checks=MIN_CHECKS) as service:
        service.ingest(twelve)
        first = [ask_and_check(service, q, CHOSEN) for q in QUESTIONS[:MIN_CHECKS]]
        assert [answer["cache"]["gate"] for answer in first] == [None] * MIN_CHECKS

        for question in QUESTIONS[MIN_CHECKS:]:
            answer = service.ask(question, fusion=CHOSEN, max_tokens=6)
            full = service.ask(question, fusion={"method": "vanilla"}, max_tokens=6)
            assert answer["text"] == full["text"]
            gate = answer["cache"]["gate"]
            assert gate["state"] == "full_prefill" and gate["used"] == {"method": "vanilla"}
            assert any("does not trust" in warning for warning in answer["warnings"])
            assert answer["cache"]["flops"] == full["cache"]["flops"]
            assert full["cache"]["gate"] is None
        assert any(  # and it was not full prefill before
            answer["text"] != service.ask(q, fusion={"method": "vanilla"}, max_tokens=6)["text"]
            for q, answer in zip(QUESTIONS, first, strict=False)
        )

        for question in QUESTIONS:
            assert ask_and_check(service, question, GOOD)["cache"]["gate"] is None
        assert method_of(service, "infoflow")["state"] == "ok"
        assert method_of(service, "backwards")["state"] == "full_prefill"
        found = service.settled_metrics()
        assert found.value("kvstitch_gate_state", method="backwards") == 2
        assert found.value("kvstitch_gate_state", method="infoflow") == 0
        assert found.value("kvstitch_worker_samples_dropped_total") == 0
        assert service.http.get("/status").json()["gate"]["backwards"] == "full_prefill"
        assert "now" in service.log() and "(full_prefill)" in service.log()

        reset = service.http.post("/admin/gate/reset", json={"method": "backwards"})
        assert reset.status_code == 200, reset.text
        assert service.ask(QUESTIONS[0], fusion=CHOSEN)["cache"]["gate"] is None

        pid = service.worker_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        service.until(lambda: service.worker_pid() not in (pid, None), "no new worker")
        service.wait_ready()
        assert service.http.get("/admin/gate").json()["methods"] == []
        again = [ask_and_check(service, q, CHOSEN) for q in QUESTIONS[:MIN_CHECKS]]
        assert all(answer["cache"]["gate"] is None for answer in again)
        assert service.ask(QUESTIONS[-1], fusion=CHOSEN)["cache"]["gate"] is not None


def test_without_a_share_there_is_no_gate(service: Service) -> None:
    """The default: nothing is sampled, listed or counted."""
    assert service.ask("Which colour is it?", max_tokens=1)["cache"]["gate"] is None
    assert service.http.get("/admin/gate").json() == {"sample": 0.0, "methods": []}
    assert service.http.post("/admin/gate/reset", json={}).json()["methods"] == []
    assert "kvstitch_gate_checks_total{" not in service.http.get("/metrics").text


@pytest.mark.slow
def test_stopping_with_checks_pending(serve: Serve, twelve: Documents) -> None:
    """Checks hold nothing up: the service ends as it does without them, and clients that leave
    change nothing."""
    with serve(gate_sample=1) as service:
        service.ingest(twelve)
        with service.stream("Which colour?", max_tokens=400) as events:
            next(event for event in events if event[0] == "token")
        askers = [
            threading.Thread(target=service.ask, args=(q,), kwargs={"max_tokens": 1})
            for q in QUESTIONS
        ]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        service.sigterm()
        assert service.exit_code() == 0
