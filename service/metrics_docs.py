"""Writes docs/metrics.md from the declarations of the metrics.

python -m service.metrics_docs            write it
python -m service.metrics_docs --check    fail if the page is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from service import metrics
from service.metrics import WORKER_LABEL, Declared

FILE = Path(__file__).parents[1] / "docs" / "metrics.md"
REMEDY = "docs/metrics.md is not what the code declares: run python -m service.metrics_docs"

HEAD = f"""# Metrics

Made by `python -m service.metrics_docs` from `service/metrics.py`; `make check` compares.

`GET /metrics` (scope `metrics` where keys are in use) shows both processes. The gateway counts its
own. The worker sends its numbers about once a second and the gateway shows them with the label
`{WORKER_LABEL}`, unchanged, so that a restart of the worker is a counter that starts again, which
`rate()` understands. While the worker is down its metrics are absent: a gauge of a dead process
would claim what is no longer so. Several replicas are several targets; sum over `instance`, except
what they share: the bytes of a shared Redis are the same bytes.

Rules of the house: names begin with `kvstitch_`, units are seconds, bytes and tokens, times are
differences of one process's monotonic clock, hit rate is by token, and no label ever holds a
tenant, a document or a question. Histogram borders contain the values of the SLO (TTFT 0.3 s,
between tokens 0.1 s, whole answer 3 s), so that the share of good requests is exact and not
interpolated.

Names others use for the same thing:

| here | elsewhere |
|---|---|
| `kvstitch_request_ttft_seconds` | OpenTelemetry `gen_ai.server.time_to_first_token` |
| `kvstitch_request_tpot_seconds` | OpenTelemetry `gen_ai.server.time_per_output_token` |
| stage `queue` and `load` | admit, lookup: waiting for a place, for KV being read |
| stage `prefill` | recompute: the prompt's layers, rows of documents included |
| stage `first_token` | first_decode |
| source `memory` | ram |
| `kvstitch_tier_operations_total` by `outcome` | errors by kind; full: `rejected` |
| `kvstitch_sequences`, state `waiting` | queue depth |

The stage `flush` is time the client took for the text it was sent; the worker decodes meanwhile.
"""


def render() -> str:
    """The whole page."""
    return "\n".join(
        [
            HEAD,
            *_table("Counted by the gateway", metrics.GATEWAY_METRICS.values()),
            *_table("Counted by the worker", metrics.WORKER_METRICS.values()),
            "## Borders of histograms\n",
            "| histogram | upper bounds |",
            "|---|---|",
            *(
                f"| `{m.name}` | {' '.join(f'{bound:g}' for bound in m.buckets)} |"
                for m in metrics.METRICS.values()
                if m.kind == "histogram"
            ),
            "",
        ]
    )


def _table(title: str, declared: Iterable[Declared]) -> list[str]:
    rows = [f"| `{m.name}` | {m.kind} | {_labels(m)} | {m.help} |" for m in declared]
    return [f"## {title}\n", "| name | kind | labels | what |", "|---|---|---|---|", *rows, ""]


def _labels(metric: Declared) -> str:
    return "; ".join(
        f"`{name}`" + (f": {', '.join(values)}" if values else "")
        for name, values in metric.labels.items()
    )


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        if not FILE.is_file() or FILE.read_text(encoding="utf-8") != render():
            print(REMEDY, file=sys.stderr)
            return 1
        return 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    FILE.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
