"""SLO: how fast the error budgets are used up. Reads the recording rules of docker/prometheus."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from kvstitch_dashboards.panels import HALF, board, lines, number

WINDOWS = ("5m", "30m", "1h", "6h", "3d")


def burn(window: str) -> str:
    """1: the budget is used up exactly at the end of its time."""
    return f'max by (slo) (kvstitch:slo_burn:{window}{{job=~"$job"}})'


def slo() -> Dashboard:
    return board(
        "kvstitch: SLO",
        "kvstitch-slo",
        "TTFT 0.3 s, between tokens 0.1 s, whole answer 3 s, 99 % each; 99.9 % answered",
        {
            "Budget": [
                number(
                    "Left of three days",
                    f"1 - {burn('3d')}",
                    unit="percentunit",
                    legend="{{slo}}",
                    bad_below=0,
                    text="Below 0: more requests were bad than the SLO allows",
                ),
                number(
                    "Good in the last hour",
                    "1 - max by (slo) ("
                    'sum_over_time(kvstitch:slo_bad:rate5m{job=~"$job"}[1h]) / '
                    '(sum_over_time(kvstitch:slo_all:rate5m{job=~"$job"}[1h]) > 0))',
                    unit="percentunit",
                    legend="{{slo}}",
                ),
                number("Burn, one hour", burn("1h"), legend="{{slo}}", bad_above=14.4),
                number("Burn, six hours", burn("6h"), legend="{{slo}}", bad_above=6),
            ],
            "Burn": [
                lines(f"Over {window}", {"{{slo}}": burn(window)}, span=HALF) for window in WINDOWS
            ]
            + [
                lines(
                    "Alerts",
                    {
                        "{{alertname}} {{alertstate}}": (
                            'count by (alertname, alertstate) (ALERTS{alertname=~"Kvstitch.*"})'
                        )
                    },
                    span=HALF,
                    text="docs/operations.md has a section for each",
                )
            ],
            "Good and all": [
                lines(
                    "Bad per second",
                    {"{{slo}}": 'sum by (slo) (kvstitch:slo_bad:rate5m{job=~"$job"})'},
                    span=HALF,
                    text="Requests; tokens for inter_token",
                ),
                lines(
                    "All per second",
                    {"{{slo}}": 'sum by (slo) (kvstitch:slo_all:rate5m{job=~"$job"})'},
                    span=HALF,
                ),
            ],
        },
    )
