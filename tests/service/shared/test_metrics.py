"""Metrics: one registry each, the worker's samples, nothing undeclared."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.shared.metrics import E2E_BUCKETS, METRICS, TOKEN_BUCKETS, TTFT_BUCKETS
from kvstitch.service.worker.gate.correctness_gate import Counts
from kvstitch.service.worker.gate.policy import Observation
from scripts import docs_tables


def test_slo_values_are_bucket_borders() -> None:
    assert 0.3 in TTFT_BUCKETS and 0.1 in TOKEN_BUCKETS and 3.0 in E2E_BUCKETS
    for buckets in (TTFT_BUCKETS, TOKEN_BUCKETS, E2E_BUCKETS):
        assert list(buckets) == sorted(set(buckets))


def test_two_gateways_share_nothing() -> None:
    one, two = GatewayMetrics(), GatewayMetrics()
    one.completion_tokens.inc()
    assert two.registry.get_sample_value("kvstitch_completion_tokens_total") == 0


def test_what_is_exposed_is_what_is_declared() -> None:
    families = re.findall(r"^# TYPE (\S+) (\S+)", GatewayMetrics().render().decode(), re.M)
    exposed = {name: kind for name, kind in families if not name.endswith("_created")}
    assert exposed == {metric.name: metric.kind for metric in METRICS.values()}
    assert all(re.fullmatch(r"kvstitch_[a-z0-9_]+", name) for name in exposed)


def test_counters_alone_end_in_total() -> None:
    assert all((m.kind == "counter") == m.name.endswith("_total") for m in METRICS.values())


def test_label_values_known_beforehand_are_there_at_0() -> None:
    value = GatewayMetrics().registry.get_sample_value
    # Not the jobs: 0 before they are counted would make old ones look new.
    assert value("kvstitch_jobs", {"state": "dead"}) is None
    assert value("kvstitch_requests_rejected_total", {"reason": "tokens"}) == 0
    assert value("kvstitch_stage_seconds_count", {"stage": "flush"}) == 0


def test_worker_samples_are_republished() -> None:
    metrics = GatewayMetrics()
    labels = {"tier": "ssd", "op": "read", "outcome": "hit"}
    metrics.worker.update(
        [
            ("kvstitch_tier_operations_total", labels, 3.0),
            ("kvstitch_tier_used_bytes", {"tier": "ssd"}, 10.0),
            ("kvstitch_tier_healthy", {"tier": "ssd"}, 1.0),
        ]
    )
    value = metrics.registry.get_sample_value
    shown = {**labels, "worker": "0"}
    assert value("kvstitch_tier_operations_total", shown) == 3
    assert metrics.worker.tiers() == {"ssd": {"used_bytes": 10.0, "healthy": 1.0}}
    metrics.worker.update([])
    assert value("kvstitch_tier_operations_total", shown) is None


def test_several_workers_are_told_apart_and_a_dead_one_claims_nothing() -> None:
    metrics = GatewayMetrics()
    for worker, steps in (("0", 5.0), ("1", 7.0)):
        metrics.worker.update([("kvstitch_decode_steps_total", {}, steps)], worker)
    value = metrics.registry.get_sample_value
    shown = [value("kvstitch_decode_steps_total", {"worker": worker}) for worker in "01"]
    assert shown == [5, 7]
    metrics.worker.forget("0")
    shown = [value("kvstitch_decode_steps_total", {"worker": worker}) for worker in "01"]
    assert shown == [None, 7]


def test_a_histogram_of_the_worker_is_a_histogram_in_the_scrape() -> None:
    name, labels = "kvstitch_gate_kl_nats", {"method": "a3"}
    counts = Counts()
    for value in (0.00005, 0.01, 0.02, 99.0):
        counts.checked("a3", Observation(value, True))
    metrics = GatewayMetrics()
    metrics.worker.update(counts.values())
    shown = metrics.registry.get_sample_value
    everywhere = {**labels, "worker": "0"}
    bounds = {"0.0001": 1, "0.003": 1, "0.01": 2, "0.03": 3, "10.0": 3, "+Inf": 4}
    for bound, count in bounds.items():
        assert shown(f"{name}_bucket", {**everywhere, "le": bound}) == count
    assert shown(f"{name}_count", everywhere) == 4
    assert shown(f"{name}_sum", everywhere) == pytest.approx(99.03005)
    assert metrics.registry.get_sample_value("kvstitch_worker_samples_dropped_total") == 0


def test_undeclared_samples_are_dropped_and_counted() -> None:
    metrics = GatewayMetrics()
    metrics.worker.update(
        [
            ("kvstitch_invented", {}, 1.0),
            ("kvstitch_tier_used_bytes", {"tier": "ssd", "document": "secret"}, 1.0),
        ]
    )
    assert "secret" not in metrics.render().decode()
    assert metrics.registry.get_sample_value("kvstitch_worker_samples_dropped_total") == 2


def test_the_page_of_metrics_is_made_from_the_code() -> None:
    check = [sys.executable, "-m", "scripts.docs_tables", "--check"]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = docs_tables.METRICS_PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in METRICS)
