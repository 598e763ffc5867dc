"""What dashboards count where several gateways report the same workers: every worker once."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.ops import expressions

# Two gateways that share two workers, and two that have a worker each.
SHARED = [("a", "10.0.0.1:5700"), ("a", "10.0.0.2:5700"), ("b", "10.0.0.1:5700"),
          ("b", "10.0.0.2:5700")]  # fmt: skip
OWN = [("a", "0"), ("b", "0")]


def promql() -> object:
    file = expressions.DOCKER / "grafana" / "kvstitch_dashboards" / "promql.py"
    spec = importlib.util.spec_from_file_location("kvstitch_promql", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("workers", "different"), [(SHARED, 2), (OWN, 2)], ids=["shared", "own"])
def test_every_worker_counts_once(
    workers: list[tuple[str, str]], different: int, tmp_path: Path
) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed: run scripts/install-prometheus.sh")
    made = promql()
    asked = {
        made.gauge("sum", "store_pending_writes"): 3 * different,  # type: ignore[attr-defined]
        made.rate("tier_evictions_total", by="tier"): 2 * different,  # type: ignore[attr-defined]
        # What is the gateway's own is counted by each.
        made.gauge("sum", "requests_in_flight"): 5 * len({g for g, _ in workers}),  # type: ignore[attr-defined]
    }
    at = [
        f'{{job="kvstitch",instance="{gateway}:8000",pod="gateway-{gateway}",worker="{worker}"}}'
        for gateway, worker in workers
    ]
    series = [(f"kvstitch_store_pending_writes{labels}", "3x20") for labels in at]
    series += [
        (f'kvstitch_tier_evictions_total{labels[:-1]},tier="{tier}"}}', "0+60x20")
        for labels in at
        for tier in ("memory", "ssd")
    ]
    series += [
        (f'kvstitch_requests_in_flight{{job="kvstitch",instance="{g}:8000"}}', "5x20")
        for g in sorted({g for g, _ in workers})
    ]
    tests = [
        {"expr": f"sum ({expressions.Expression('', text).executable})", "eval_time": "15m",
         "exp_samples": [{"labels": "{}", "value": value}]}
        for text, value in asked.items()
    ]  # fmt: skip
    file = tmp_path / "counts.yml"
    inputs = [{"series": name, "values": values} for name, values in series]
    case = {"interval": "1m", "input_series": inputs, "promql_expr_test": tests}
    file.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [case]}))
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
