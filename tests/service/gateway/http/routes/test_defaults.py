"""What a request gets that names no method, or that says `auto`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvstitch.service.shared.model_fingerprint import fingerprint
from tests.service.gateway.rig import Rig, running


def calibrate(data: Path, folder: Path) -> None:
    served = {"prefix_mode": "system", "codec": "raw"}
    measured = [
        {"fusion": {"method": "pie"}, **served, "operations": 0.1, "agreement": {"low": 0.8}},
        {"fusion": {"method": "a3", "ratio": 0.3}, **served, "operations": 0.4,
         "agreement": {"low": 0.95}},
    ]  # fmt: skip
    defaults = {"fusion": {"method": "a3", "ratio": 0.3}, **served}
    fields = {"model": fingerprint(str(folder)), "defaults": defaults, "measured": measured}
    data.mkdir(parents=True, exist_ok=True)
    (data / "calibration.json").write_text(json.dumps(fields))


def used(rig: Rig, **body: Any) -> Any:
    response = rig.ask(**body)
    assert response.status_code == 200, response.text
    return response.json()["fusion"]


def test_built_in(shared: Rig) -> None:
    assert used(shared) == {"method": "question_scout", "ratio": 0.15}
    found = shared.http.get("/v1/methods").json()["defaults"]
    assert found["fusion"] == {"method": "question_scout", "ratio": 0.15} and found["auto"] is False
    assert found["from"]["fusion"] == "built-in" and found["from"]["prefix_mode"] == "prompt format"


def test_profiles(shared: Rig, folder: Path, data: Path) -> None:
    """Of the built-in default, and of what was tuned; on OpenAI's routes, too."""
    assert used(shared, profile="fast") == {"method": "pie"}
    assert used(shared, profile="balanced") == used(shared)
    assert used(shared, profile="exact") == {"method": "vanilla"}
    for body in ({"fusion": {"method": "a3"}}, {"eviction": {"method": "snapkv"}}):
        response = shared.ask(profile="fast", **body)
        error = response.json()["error"]
        assert response.status_code == 422 and error["param"] == "profile"
        assert f"leave out {next(iter(body))}" in error["message"]
    assert shared.ask(profile="quick").status_code == 422
    calibrate(data, folder)
    with running(folder, data) as rig:
        rig.ingest()
        assert used(rig, profile="balanced") == {"method": "a3", "ratio": 0.3}
        assert used(rig, profile="fast") == {"method": "pie"}
        chat = rig.http.post("/v1/chat/completions", json={
            "messages": [{"role": "user", "content": "Which capital?"}],
            "kvstitch": {"profile": "exact"},
        })  # fmt: skip
        assert chat.json()["kvstitch"]["fusion"]["method"] == "vanilla"


def test_methods_by_name(shared: Rig, folder: Path, data: Path) -> None:
    """They are the service's: fastest is PIE only where chunks know of others."""
    named = shared.http.get("/v1/methods").json()["names"]
    assert list(named) == ["exact", "balanced", "fastest"]
    for name, fusion in named.items():
        assert used(shared, fusion={"method": name}) == fusion
    assert named["fastest"] == named["balanced"] == used(shared)
    changed = used(shared, fusion={"method": "balanced", "ratio": 0.4})
    assert changed == {"method": "question_scout", "ratio": 0.4}
    refused = shared.ask(fusion={"method": "exact", "ratio": 0.4})
    assert refused.status_code == 422 and refused.json()["error"]["param"] == "fusion.ratio"
    calibrate(data, folder)
    with running(folder, data, prefix_mode="primer") as rig:
        rig.ingest()
        assert used(rig, fusion={"method": "balanced"}) == {"method": "a3", "ratio": 0.3}
        assert used(rig, fusion={"method": "fastest"}) == {"method": "pie"}


def test_auto_without_a_calibration(shared: Rig) -> None:
    response = shared.ask(fusion={"method": "auto", "quality": 0.9})
    error = response.json()["error"]
    assert response.status_code == 409 and error["code"] == "not_calibrated"
    assert "kvstitch tune" in error["message"]


def test_what_an_older_release_tuned_is_left_alone(folder: Path, data: Path, caplog: Any) -> None:
    """Its method is gone, or a parameter of it: the built-in default answers, and it is told."""
    for gone in ({"method": "question_trail"}, {"method": "question_scout", "edge": 2}):
        calibrate(data, folder)
        path = data / "calibration.json"
        found = json.loads(path.read_text())
        found["defaults"]["fusion"] = gone
        found["measured"].append({**found["measured"][0], "fusion": gone, "operations": 0.01})
        path.write_text(json.dumps(found))
        caplog.clear()
        with running(folder, data) as rig:
            rig.ingest()
            assert used(rig) == {"method": "question_scout", "ratio": 0.15}
            assert used(rig, profile="balanced")["method"] == "question_scout"
            assert used(rig, fusion={"method": "auto", "quality": 0.7})["method"] == "pie"
            told = rig.http.get("/v1/methods").json()["defaults"]
            assert told["from"]["fusion"] == "built-in"
        warnings = [r for r in caplog.records if "this release does not have" in r.getMessage()]
        assert len(warnings) == 1


def test_calibrated(folder: Path, data: Path) -> None:
    calibrate(data, folder)
    with running(folder, data) as rig:
        rig.ingest()
        assert used(rig) == {"method": "a3", "ratio": 0.3}
        assert used(rig, fusion={"method": "a3"}) == {"method": "a3", "ratio": 0.15}
        assert used(rig, fusion={"method": "auto", "quality": 0.7})["method"] == "pie"
        assert used(rig, fusion={"method": "auto", "quality": 0.9})["method"] == "a3"
        assert used(rig, fusion={"method": "auto"})["method"] == "vanilla"
        chat = rig.http.post("/v1/chat/completions", json={
            "messages": [{"role": "user", "content": "Which capital?"}],
            "kvstitch": {"fusion": {"method": "auto", "quality": 0.7}},
        })  # fmt: skip
        assert chat.json()["kvstitch"]["fusion"]["method"] == "pie"
        found = rig.http.get("/v1/methods").json()["defaults"]
        assert found["prefix_mode"] == "system" and found["auto"] is True
        assert set(found["from"].values()) == {"kvstitch tune", "built-in"}
        for wrong in ({"quality": 1.5}, {"quality": "high"}, {"ratio": 0.1}):
            assert rig.ask(fusion={"method": "auto", **wrong}).status_code == 422
