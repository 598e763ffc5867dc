"""Metrics: one registry each, the worker's samples, nothing undeclared."""

from __future__ import annotations

import re

from service.metrics import E2E_BUCKETS, TOKEN_BUCKETS, TTFT_BUCKETS, WORKER_METRICS, Metrics


def test_slo_values_are_bucket_borders() -> None:
    assert 0.3 in TTFT_BUCKETS and 0.1 in TOKEN_BUCKETS and 3.0 in E2E_BUCKETS
    for buckets in (TTFT_BUCKETS, TOKEN_BUCKETS, E2E_BUCKETS):
        assert list(buckets) == sorted(set(buckets))


def test_two_gateways_share_nothing() -> None:
    one, two = Metrics(), Metrics()
    one.completion_tokens.inc()
    assert two.registry.get_sample_value("kvstitch_completion_tokens_total") == 0


def test_names_have_the_prefix_and_no_colon() -> None:
    names = set(re.findall(r"^# TYPE (\S+)", Metrics().render().decode(), re.M))
    assert names and all(re.fullmatch(r"kvstitch_[a-z0-9_]+", name) for name in names)
    assert {name.removesuffix("_total") for name in WORKER_METRICS} <= {
        name.removesuffix("_total") for name in names
    }


def test_worker_samples_are_republished() -> None:
    metrics = Metrics()
    labels = {"tier": "ssd", "op": "read", "outcome": "hit"}
    metrics.worker.update(
        [
            ("kvstitch_tier_operations_total", labels, 3.0),
            ("kvstitch_tier_used_bytes", {"tier": "ssd"}, 10.0),
            ("kvstitch_tier_healthy", {"tier": "ssd"}, 1.0),
        ]
    )
    value = metrics.registry.get_sample_value
    assert value("kvstitch_tier_operations_total", labels) == 3
    assert metrics.worker.tiers() == {"ssd": {"used_bytes": 10.0, "healthy": 1.0}}
    metrics.worker.update([])
    assert value("kvstitch_tier_operations_total", labels) is None


def test_undeclared_samples_are_dropped_and_counted() -> None:
    metrics = Metrics()
    metrics.worker.update(
        [
            ("kvstitch_invented", {}, 1.0),
            ("kvstitch_tier_used_bytes", {"tier": "ssd", "document": "secret"}, 1.0),
        ]
    )
    assert "secret" not in metrics.render().decode()
    assert metrics.registry.get_sample_value("kvstitch_worker_samples_dropped_total") == 2
