"""Every expression that people or alerts look at, and what is wrong with each of them.

Dashboards are read from their JSON and rules from their YAML, as Grafana and Prometheus do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from kvstitch.service.shared.metrics import METRICS

DOCKER = Path(__file__).parents[2] / "docker"
DASHBOARDS = DOCKER / "grafana" / "dashboards"
RULES = DOCKER / "prometheus" / "rules"

# What Grafana fills in; tests look at all jobs, at what happened in the last minutes.
VARIABLES = {"$job": ".*", "$__rate_interval": "5m"}
NAME = re.compile(r"(?<![\w:])kvstitch[_:][\w:]+")
COMPARISON = re.compile(r"(==|>=|<=|>|<)\s*(?=\d)")

Query = Callable[[str], Sequence[float]]


@dataclass(frozen=True)
class Expression:
    """where: dashboard / panel / letter, or file / rule; alert: empty unless it fires."""

    where: str
    text: str
    alert: bool = False

    @property
    def executable(self) -> str:
        """What a Prometheus can be asked. Of an alert: 0 or 1 in place of nothing or a value."""
        text = self.text
        for variable, value in VARIABLES.items():
            text = text.replace(variable, value)
        return COMPARISON.sub(r"\1 bool ", text) if self.alert else text

    def renamed(self, old: str, new: str) -> Expression:
        return replace(self, text=re.sub(rf"\b{old}", new, self.text))


def panels(folder: Path = DASHBOARDS) -> list[Expression]:
    found = []
    for file in sorted(folder.glob("*.json")):
        dashboard = json.loads(file.read_text(encoding="utf-8"))
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                where = f"{file.stem} / {panel['title']} / {target['refId']}"
                found.append(Expression(where, target["expr"]))
    return found


def rules(folder: Path = RULES) -> list[Expression]:
    found = []
    for file, rule in all_rules(folder):
        name = rule.get("alert") or f"{rule['record']} {rule.get('labels', {}).get('slo', '')}"
        where = f"{file.stem} / {name.strip()}"
        found.append(Expression(where, rule["expr"], alert="alert" in rule))
    return found


def all_rules(folder: Path = RULES) -> list[tuple[Path, dict[str, Any]]]:
    return [
        (file, rule)
        for file in sorted(folder.glob("*.yml"))
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]


def undeclared(expressions: Iterable[Expression]) -> dict[str, str]:
    """Where to the name that neither the service nor a recording rule gives."""
    known = {name for metric in METRICS.values() for name in metric.series}
    known |= {rule["record"] for _, rule in all_rules() if "record" in rule}
    return {
        expression.where: name
        for expression in expressions
        for name in NAME.findall(expression.text)
        if name not in known
    }


def without_data(
    expressions: Iterable[Expression], query: Query, allowed: Collection[str] | Mapping[str, str]
) -> dict[str, str]:
    """Where to what is wrong, for every expression that is empty or NaN and not `allowed` to be."""
    wrong = {}
    for expression in expressions:
        values = query(expression.executable)
        if expression.where in allowed:
            continue
        if not values:
            wrong[expression.where] = f"empty: {expression.executable}"
        elif any(value != value for value in values):
            wrong[expression.where] = f"NaN: {expression.executable}"
    return wrong
