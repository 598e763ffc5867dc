"""A plan carries a worker's settings to another machine, and no secret where it can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.settings import demo_model, load
from kvstitch_ray.cluster.records import WorkerPlan

SECRET = "0123456789abcdef0123456789abcdef"


def plan(tmp_path: Path, **settings: object) -> WorkerPlan:
    given = {"model": str(demo_model()), "data_dir": tmp_path, "port": 9, **settings}
    return WorkerPlan.of(load(**given), cpus=2.0, ports=(5700, 5709))


def test_only_what_is_a_workers_and_given_is_sent(tmp_path: Path) -> None:
    sent = WorkerPlan.from_json(plan(tmp_path, codec="int8").to_json())
    assert sent == plan(tmp_path, codec="int8")
    assert set(sent.settings) == {"model", "data_dir", "codec"}


def test_what_is_not_given_comes_from_the_environment_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = plan(tmp_path).to_json()
    monkeypatch.setenv("KVSTITCH_FLEET_SECRET", SECRET)
    monkeypatch.setenv("KVSTITCH_CODEC", "int4")
    made = WorkerPlan.from_json(sent).prepared().at("tcp://10.0.0.1:5700")
    assert (made.fleet_secret, made.codec, made.threads, made.shared) == (SECRET, "int4", 2, True)


def test_an_address_that_others_reach_needs_a_secret(tmp_path: Path) -> None:
    prepared = plan(tmp_path).prepared()
    with pytest.raises(InvalidSetting, match="KVSTITCH_FLEET_SECRET"):
        prepared.at("tcp://10.0.0.1:5700")
    assert prepared.at("tcp://127.0.0.1:5700").tenants_secret


def test_a_plan_shows_no_secret(tmp_path: Path) -> None:
    secret = plan(tmp_path, fleet_secret=SECRET)
    assert SECRET not in repr(secret)
    assert SECRET not in repr(secret.prepared())
    assert secret.digest == plan(tmp_path).digest
    assert secret.digest != plan(tmp_path, codec="int8").digest


def test_a_later_version_may_send_more(tmp_path: Path) -> None:
    text = plan(tmp_path).to_json()
    assert WorkerPlan.from_json('{"colour": "red", ' + text[1:]) == plan(tmp_path)
