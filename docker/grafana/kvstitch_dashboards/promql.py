"""The few PromQL shapes the dashboards are made of."""

from __future__ import annotations

from kvstitch.service.shared.metrics import WORKER_METRICS

WINDOW = "$__rate_interval"
HIT = "memory|ssd|redis|s3"  # sources of prompt tokens that were not computed


def series(name: str, *matchers: str) -> str:
    """`kvstitch_NAME` of the chosen jobs; matchers as PromQL writes them, `tier="ssd"`."""
    inside = ",".join(('job=~"$job"', *matchers))
    return f"kvstitch_{name}{{{inside}}}"


def rate(name: str, *matchers: str, by: str = "") -> str:
    """Per second, summed over everything but `by`."""
    return f"sum{_by(by)} ({once(name, f'rate({series(name, *matchers)}[{WINDOW}])')})"


def ratio(part: str, whole: str) -> str:
    """Nothing, rather than NaN, while there is nothing to divide by."""
    return f"{part} / ({whole} > 0)"


def quantile(q: float, histogram: str, *matchers: str, by: str = "") -> str:
    """Of what was observed lately; nothing where nothing was."""
    labels = f"le, {by}" if by else "le"
    buckets = rate(f"{histogram}_bucket", *matchers, by=labels)
    seen = rate(f"{histogram}_count", *matchers, by=by)
    return f"histogram_quantile({q}, {buckets}) and on ({by}) ({seen} > 0)"


def mean(histogram: str, *matchers: str, by: str = "") -> str:
    return ratio(
        rate(f"{histogram}_sum", *matchers, by=by), rate(f"{histogram}_count", *matchers, by=by)
    )


def counts(histogram: str, *matchers: str) -> str:
    """What a heatmap draws: observations per border and step."""
    name = series(f"{histogram}_bucket", *matchers)
    return f"sum by (le) (increase({name}[{WINDOW}]))"


def gauge(how: str, name: str, *matchers: str, by: str = "") -> str:
    """`how`: sum, max, min."""
    found = series(name, *matchers)
    return f"{how}{_by(by)} ({once(name, found) if how == 'sum' else found})"


def once(name: str, expression: str) -> str:
    """Of a worker's metric, every worker once.

    Gateways that share workers each report all of them, by address. A gateway's own workers have
    numbers, so those of two gateways are different workers.
    """
    if f"kvstitch_{name}" not in WORKER_METRICS:
        return expression
    seen_at = f'label_replace({expression}, "at", "$1", "instance", "(.*)")'
    return f'max without (instance, pod) (label_replace({seen_at}, "at", "", "worker", ".+:.+"))'


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""
