"""Dashboards and rules by themselves: made from the code, accepted by promtool, names that exist,
an alert's page in the runbook. Whether they show data is tests/e2e/test_observed.py's business."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstitch.service.shared.metrics import METRICS
from tests.ops import expressions, tools

TESTS = sorted(Path(__file__).with_name("rules").glob("*_test.yml"))
ALERTS = {rule["alert"]: rule for _, rule in expressions.all_rules() if "alert" in rule}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed: run scripts/install-prometheus.sh")
    return found


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=tools.REPOSITORY)


def test_the_dashboards_are_what_the_code_makes() -> None:
    path = {**os.environ, "PYTHONPATH": str(expressions.DOCKER / "grafana")}
    check = [sys.executable, "-m", "kvstitch_dashboards", "--check"]
    done = subprocess.run(check, capture_output=True, text=True, env=path)
    assert done.returncode == 0, done.stderr


def test_dashboards_read_the_source_that_is_provisioned() -> None:
    folder = expressions.DOCKER / "grafana"
    sources = yaml.safe_load((folder / "provisioning/datasources/prometheus.yml").read_text())
    (uid,) = {source["uid"] for source in sources["datasources"]}
    for file in sorted((folder / "dashboards").glob("*.json")):
        assert set(re.findall(r'"uid": "([^"]+)"', file.read_text())) == {uid, file.stem}


def test_promtool_accepts_the_rules(promtool: str) -> None:
    done = run(promtool, "check", "rules", *sorted(expressions.RULES.glob("*.yml")))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_alerts_fire_when_they_should_and_only_then(promtool: str, file: Path) -> None:
    done = run(promtool, "test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_is_tested_firing_and_not(alert: str) -> None:
    expected: set[bool] = set()
    for file in TESTS:
        for case in yaml.safe_load(file.read_text())["tests"]:
            for test in case["promql_expr_test"]:
                if f'"{alert}"' in test["expr"]:
                    expected.add(bool(test["exp_samples"]))
    assert expected == {True, False}


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_page_in_the_runbook(alert: str) -> None:
    """A heading of the alert's name, which is what the anchor of its link leads to."""
    rule: dict[str, Any] = ALERTS[alert]
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    text = (tools.REPOSITORY / page).read_text(encoding="utf-8")
    headings = {h.strip().lower() for h in re.findall(r"(?m)^#+ (.+)$", text)}
    assert anchor == alert.lower() and anchor in headings
    assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_every_metric_that_is_looked_at_is_declared() -> None:
    assert expressions.undeclared([*expressions.panels(), *expressions.rules()]) == {}


def test_every_declared_metric_is_looked_at() -> None:
    """What nobody looks at is not worth its counting."""
    looked_at = [*expressions.panels(), *expressions.rules()]
    names = {name for e in looked_at for name in expressions.NAME.findall(e.text)}
    unseen = {m.name for m in METRICS.values() if not names & set(m.series)}
    assert unseen == set()
