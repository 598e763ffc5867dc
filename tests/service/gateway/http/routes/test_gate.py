"""/admin/gate: what the worker says, and what is asked of it."""

from __future__ import annotations

from kvstitch.service.messages.replies import GateState
from kvstitch.service.messages.requests import AskGate, Method
from tests.service.gateway.rig import Rig

A3 = Method("a3", {"ratio": 0.15})
FALLEN = GateState(A3, "full_prefill", Method("vanilla"), "0 of 8 checks agreed", 2.5,
                   0, None, None, 3, 1.0, 0.01, 32, 1)  # fmt: skip
FINE = GateState(Method("pie"), "ok", Method("pie"), "", 9.0, 2, 1.0, 0.1, 0, None, None, 0, 0)


def test_states_are_told_and_reset(rig: Rig) -> None:
    assert rig.worker is not None
    rig.worker.gate = [FALLEN, FINE]
    told = rig.http.get("/admin/gate").json()
    assert [m["state"] for m in told["methods"]] == ["full_prefill", "ok"]
    first = told["methods"][0]
    assert first["fusion"] == {"method": "a3", "ratio": 0.15}
    assert first["used"] == {"method": "vanilla"}
    assert (first["why"], first["recovery_checks"], first["recovery_needed"]) == (FALLEN.why, 3, 32)
    reset = rig.http.post("/admin/gate/reset", json={"method": "a3"})
    assert reset.status_code == 200, reset.text
    assert [m["fusion"]["method"] for m in reset.json()["methods"]] == ["pie"]
    assert rig.http.post("/admin/gate/reset", json={}).json()["methods"] == []
    asked = [m.reset for m in rig.worker.seen(AskGate) if isinstance(m, AskGate)]
    assert asked == [None, "a3", ""]


def test_an_unknown_method_is_named(rig: Rig) -> None:
    reply = rig.http.post("/admin/gate/reset", json={"method": "a4"})
    assert reply.status_code == 422
    problem = reply.json()
    assert (problem["code"], problem["field"]) == ("unknown_method", "method")
    assert "a3, pie, question_scout, vanilla" in problem["detail"]
    assert rig.http.post("/admin/gate/reset", json={"methods": "a3"}).status_code == 422
