"""Dashboards and rules show data: the service, Redis and Prometheus are real, and traffic goes
along every path. An expression that finds nothing, or NaN, fails the test unless it is listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import traffic
from tests.e2e.conftest import Documents
from tests.e2e.service import Service
from tests.ops import expressions
from tests.ops.expressions import Expression
from tests.prometheus_server import PrometheusServer, prometheus
from tests.redis_server import redis_server

pytestmark = pytest.mark.slow

# Where an expression stands, to why it may be empty.
MAY_BE_EMPTY: dict[str, str] = {
    "kvstitch-service / Answers by LoRA adapter / A": "no adapter is served here",
    "kvstitch-cache / Prompts continued / A": "no prompt comes again here",
    "kvstitch-cache / Prompts continued / B": "nor is one stored",
    "kvstitch-cache / Servers of shared tiers / A": "a lone Redis says nothing of servers",
    "kvstitch-cache / Servers of shared tiers / B": "a lone Redis says nothing of servers",
}
RECORDED = 'count(last_over_time({__name__=~"kvstitch:slo_burn:.*"}[1m]))'


@pytest.fixture(scope="module")
def observed(
    tmp_path_factory: pytest.TempPathFactory, model: Path, twelve: Documents
) -> Iterator[PrometheusServer]:
    """A Prometheus that has watched a service being used in every way there is."""
    folder = tmp_path_factory.mktemp("observed")
    names = [d["doc_id"] for d in twelve]
    settings = {
        "memory_tier_mib": 2,  # three documents
        "ssd_tier_gib": 0.004,  # seven
        "planner": True,
        "max_running": 2,
        "max_waiting": 4,
        "gate_sample": 1,
    }
    with (
        redis_server(maxmemory="64mb", policy="allkeys-lru") as redis,
        Service(model, folder / "data", redis_url=redis.url, **settings) as service,
        prometheus(
            target=f"127.0.0.1:{service.port}", rules=expressions.RULES, data=folder / "prometheus"
        ) as server,
    ):
        # A counter's first value is no increase: everything must have been scraped once before.
        service.until(
            lambda: server.query("kvstitch_worker_up") == [1.0], "Prometheus does not scrape"
        )
        service.ingest(twelve)
        traffic.warned(service)
        traffic.answers(service, twelve)
        for tier in ("memory", "ssd"):
            traffic.hit(service, names, tier)
        traffic.from_redis(service, names)
        traffic.damaged(service, names)
        traffic.wrong(service)
        traffic.compared(service)
        traffic.too_many(service)
        traffic.without_redis(service, redis, names)
        traffic.answers(service, twelve)
        service.settled_metrics()
        service.until(lambda: server.query(RECORDED) != [], "no rule is evaluated")
        decoded = "kvstitch_decode_steps_total"
        latest = service.metrics().value(decoded)
        service.until(lambda: server.query(decoded) >= [latest], "Prometheus lags behind")
        yield server


def test_every_panel_shows_data(observed: PrometheusServer) -> None:
    panels = expressions.panels()
    assert len({panel.where for panel in panels}) == len(panels) > 60
    assert expressions.without_data(panels, observed.query, MAY_BE_EMPTY) == {}


def test_every_rule_has_data_to_judge(observed: PrometheusServer) -> None:
    rules = expressions.rules()
    assert len(rules) > 30
    assert expressions.without_data(rules, observed.query, MAY_BE_EMPTY) == {}
    assert [r["name"] for r in observed.rules() if r["health"] != "ok"] == []


def test_damage_and_overload_have_woken_somebody(observed: PrometheusServer) -> None:
    state = 'ALERTS{alertname="KvstitchCorruptChunks",alertstate="firing",tier="ssd"}'
    assert observed.query(state) == [1.0]
    assert observed.query('ALERTS{alertname="KvstitchShedding"}') == [1.0]


@pytest.mark.parametrize(
    "name",
    ["kvstitch_request_ttft_seconds", "kvstitch_tier_used_bytes", "kvstitch:slo_bad:rate5m"],
)
def test_a_renamed_metric_is_found(observed: PrometheusServer, name: str) -> None:
    """The check above, of expressions that call a metric otherwise, names every one of them."""
    everything = [*expressions.panels(), *expressions.rules()]
    mutated = {e.where: m for e in everything if (m := e.renamed(name, f"{name}_x")) != e}
    found = expressions.without_data(mutated.values(), observed.query, MAY_BE_EMPTY)
    assert mutated and set(found) == set(mutated)


def test_an_empty_panel_and_nan_are_found(observed: PrometheusServer) -> None:
    bad = [Expression("empty", "kvstitch_nothing"), Expression("nan", "kvstitch_worker_up * NaN")]
    assert set(expressions.without_data(bad, observed.query, {})) == {"empty", "nan"}
    assert expressions.without_data(bad, observed.query, {"empty": "why", "nan": "why"}) == {}
