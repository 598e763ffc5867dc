"""Panels and dashboards with this project's looks. Knows no metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="prometheus")
HEIGHT = 8
THIRD, HALF, QUARTER = 8, 12, 6

Panel = Builder[models.Panel]
Rows = Mapping[str, Sequence[Panel]]
Expressions = Mapping[str, str]
"""Legend to expression; `{{label}}` in a legend is filled in by Grafana."""


def lines(
    title: str,
    expressions: Expressions,
    *,
    unit: str = "short",
    text: str = "",
    span: int = THIRD,
    stacked: bool = False,
    top: float | None = None,
) -> Panel:
    """Time series; `top`: the value that is full."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .span(span)
        .height(HEIGHT)
        .fill_opacity(30 if stacked else 8)
        .show_points(looks.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(looks.LegendDisplayMode.LIST)
            .placement(looks.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI))
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL))
    if top is not None:
        panel = panel.max(top)
    for target in _targets(expressions):
        panel = panel.with_target(target)
    return panel


def warmth(title: str, expression: str, *, unit: str = "s", text: str = "") -> Panel:
    """A heatmap of a histogram's buckets."""
    target = (
        prometheus.Dataquery()
        .expr(expression)
        .format(PromQueryFormat.HEATMAP)
        .legend_format("{{le}}")
        .ref_id("A")
    )
    return (
        heatmap.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .span(HALF)
        .height(HEIGHT)
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges"))
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .with_target(target)
    )


def number(
    title: str,
    expression: str,
    *,
    unit: str = "short",
    text: str = "",
    legend: str = "",
    bad_above: float | None = None,
    bad_below: float | None = None,
) -> Panel:
    """One number per series, red beyond its bound."""
    steps = [models.Threshold(value=None, color="green")]
    if bad_above is not None:
        steps.append(models.Threshold(value=bad_above, color="red"))
    if bad_below is not None:
        steps = [
            models.Threshold(value=None, color="red"),
            models.Threshold(value=bad_below, color="green"),
        ]
    panel = (
        stat.Panel()
        .title(title)
        .description(text)
        .datasource(SOURCE)
        .unit(unit)
        .span(QUARTER)
        .height(HEIGHT // 2)
        .thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    )
    for target in _targets({legend: expression}):
        panel = panel.with_target(target)
    return panel


def board(title: str, uid: str, text: str, rows: Rows) -> models.Dashboard:
    """A dashboard whose rows are open, with the choice of jobs at its top."""
    jobs = (
        dashboard.QueryVariable("job")
        .datasource(SOURCE)
        .query("label_values(kvstitch_worker_up, job)")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(text="All", value="$__all"))
    )
    built = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(text)
        .tags(["kvstitch"])
        .readonly()
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .with_variable(jobs)
        .link(
            dashboard.DashboardLink("kvstitch")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["kvstitch"])
            .include_vars(True)
            .keep_time(True)
        )
    )
    for name, panels in rows.items():
        built = built.with_row(dashboard.Row(name))
        for panel in panels:
            built = built.with_panel(panel)
    made = built.build()
    for index, placed in enumerate(made.panels or (), 1):
        placed.id_val = index  # what links to a panel name
    return made


def _targets(expressions: Expressions) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + n))
        for n, (legend, expression) in enumerate(expressions.items())
    ]
