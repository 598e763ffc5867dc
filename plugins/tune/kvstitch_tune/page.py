"""The report as one HTML file that needs nothing else: no scripts, pictures are inside.

Without matplotlib there are none, and all else is as with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.util import find_spec
from io import StringIO
from typing import Any

from kvstitch_tune.stages import LEAST_RECOMMENDED

STAGES = {
    "screen": "Methods, with chunks stored behind the system prompt",
    "prefix": "What chunks are precomputed behind",
    "storage": "Codecs and evictions",
    "test": "Test part: prompts that decided nothing",
}
STYLE = """
:root{color-scheme:light dark;--line:#8884}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.2rem .5rem;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal}
tr.best{font-weight:600}
.wide{overflow-x:auto}
svg{width:100%;height:auto}
figure{margin:1rem 0}
pre{overflow-x:auto;padding:.8rem;border:1px solid var(--line)}
"""
COLUMNS = (
    "configuration", "prompts", "KL per token", "KL first", "agreement", "same answer",
    "operations", "TTFT", "MiB", "KV kept",
)  # fmt: skip


def page(report: Mapping[str, Any], settings: str) -> str:
    """Return the page."""
    found = report["evidence"]
    best, fixed = report["recommended"], report["fixed_defaults"]
    title = f"kvstitch tune: {found['model_name']}"
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1>",
        f"<p>{escape(verdict(report))}</p>",
        *(f"<p><strong>{escape(text)}</strong></p>" for text in report["warnings"]),
        f"<pre>{escape(settings)}</pre>",
        f"<p>{escape(_basis(found))}</p>",
        "<p>KL is that of full prefill's next-token distribution to the configuration's, in nats, "
        "along full prefill's greedy answer. Agreement is the share of that answer's tokens that "
        "are the configuration's most likely ones too; same answer is the share of prompts with "
        "the same greedy answer. Operations and TTFT are relative to full prefill; TTFT is the "
        "prefill's time with stored KV in memory. Intervals are 95 %, over prompts.</p>",
    ]
    methods = sorted(
        {r["fusion"]["method"] for stage in report["stages"] for r in stage["candidates"]}
    )
    for stage in reversed(report["stages"]):
        parts.append(f"<h2>{escape(STAGES[stage['name']])}</h2>")
        rows = stage["candidates"]
        if left_out := found["left_out"][stage["name"]]:
            parts.append(f"<p>{left_out} more were not tried, because time was short.</p>")
        marked = {best["label"], fixed["label"]}
        if stage["name"] in ("screen", "test") and find_spec("matplotlib"):
            parts.append(_picture(rows, marked, methods))
        parts.append(_table(rows, best["label"]))
    return "\n".join(parts) + "\n</html>\n"


def verdict(report: Mapping[str, Any]) -> str:
    """Return the result in two or three sentences."""
    found = report["evidence"]
    best, fixed = report["recommended"], report["fixed_defaults"]
    prompts = found["prompts"]["test"]
    if not found["enough_test_prompts"]:
        return (
            f"{prompts} test prompts are too few to recommend anything by, so the fixed defaults "
            f"({fixed['label']}) stay. {LEAST_RECOMMENDED} are needed: "
            + (
                f"give --minutes {found['needed_minutes']:g}, and it goes on where it stopped."
                if found["needed_minutes"]
                else f"give {2 * LEAST_RECOMMENDED} questions at least, or more documents."
            )
        )
    if (promise := report["promise"]) is not None:
        kept = (
            f"With exact_below {promise['exact_below']:g} behind {best['label']} "
            f"{promise['same_answer']['mean']:.0%} ({promise['same_answer']['low']:.0%} to "
            f"{promise['same_answer']['high']:.0%}) of the answers to {prompts} test prompts are "
            f"full prefill's, each judged by the value that the others need; "
            f"{promise['fidelity']:.0%} were asked for. {promise['taken_over']:.0%} are computed "
            f"in full, {promise['operations']:.0%} of full prefill's operations in all."
        )
        return kept if promise["pays"] else f"{kept} So full prefill (vanilla) is recommended."
    if best["label"] == fixed["label"]:
        return (
            f"Nothing that was measured is better than the fixed defaults ({fixed['label']}) at "
            f"their cost on {prompts} test prompts, so they are recommended."
        )
    gap = found["kl_minus_fixed_defaults"]
    return (
        f"{best['label']} is recommended: on {prompts} test prompts its KL to full prefill is "
        f"{best['kl']['mean']:.3g} nats per token, the fixed defaults' ({fixed['label']}) "
        f"{fixed['kl']['mean']:.3g}; difference {gap['mean']:.3g} ({gap['low']:.3g} to "
        f"{gap['high']:.3g}). Its answer is full prefill's on "
        f"{best['same_answer']['mean']:.0%} of them, theirs on {fixed['same_answer']['mean']:.0%}; "
        f"it takes {best['operations']:.0%} of full prefill's operations, they "
        f"{fixed['operations']:.0%}."
    )


def _basis(found: Mapping[str, Any]) -> str:
    machine = found["environment"]
    return (
        f"{found['documents']} documents; {found['questions']}; median prompt "
        f"{found['prompt_tokens_median']} tokens; {found['dtype']}, seed {found['seed']}, "
        f"{found['spent_s']} s of {found['minutes']:g} min on {machine['cpu'] or 'a CPU'}"
        f"{' with ' + machine['gpu'] if machine['gpu'] else ''}, {found['threads']} threads; "
        + ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
        + (f"; commit {machine['commit'][:12]}" if machine["commit"] else "")
        + "."
    )


def _picture(rows: list[dict[str, Any]], marked: set[str], methods: list[str]) -> str:
    """Return an SVG of KL over cost with intervals; a method has one colour on all pictures."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for number, method in enumerate(methods):
        own = [r for r in rows if r["fusion"]["method"] == method]
        means = [r["kl"]["mean"] for r in own]
        below = [r["kl"]["mean"] - r["kl"]["low"] for r in own]
        above = [r["kl"]["high"] - r["kl"]["mean"] for r in own]
        if own:
            axes.errorbar(
                [r["operations"] for r in own], means, (below, above),
                fmt="o", markersize=5, elinewidth=0.7, color=f"C{number}", label=method,
            )  # fmt: skip
    for r in rows:
        if r["label"] in marked:
            place = (r["operations"], r["kl"]["mean"])
            axes.plot(*place, "o", color="black", fillstyle="none", markersize=10)
            axes.annotate(r["label"], place, (9, 8), textcoords="offset points", weight="bold")
    axes.set(xlabel="operations, share of full prefill", ylabel="KL per token, nats")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=6, frameon=False)
    out = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "kvstitch"}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = out.getvalue()
    # What is black takes the colour of the page's text, for dark screens.
    return f"<figure>{svg[svg.index('<svg') :].replace('#000000', 'currentColor')}</figure>"


def _table(rows: list[dict[str, Any]], best: str) -> str:
    head = "".join(f"<th>{name}" for name in COLUMNS)
    body = "".join(
        f"<tr{' class=best' if r['label'] == best else ''}>"
        + "".join(f"<td>{escape(cell)}" for cell in _cells(r))
        for r in rows
    )
    return f"<div class=wide><table><tr>{head}{body}</table></div>"


def _cells(r: Mapping[str, Any]) -> list[str]:
    def with_interval(name: str, form: str) -> str:
        e = r[name]
        return f"{e['mean']:{form}} ({e['low']:{form}}–{e['high']:{form}})"

    return [
        r["label"],
        str(r["prompts"]),
        with_interval("kl", ".3f"),
        with_interval("kl_first", ".3f"),
        with_interval("agreement", ".1%"),
        f"{r['same_answer']['mean']:.0%}",
        f"{r['operations']:.1%}",
        f"{r['ttft_ratio']:.2f}",
        f"{r['bytes'] / 2**20:.1f}",
        f"{r['kept']:.0%}",
    ]
