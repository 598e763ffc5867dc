"""Writes the tables of docs/fleet-proofs.md from the results: `python -m benchmarks.fleet.page`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path("benchmarks/results/fleet")
PAGE = Path("docs/fleet-proofs.md")
BEGIN, END = "<!-- scale: begin -->", "<!-- scale: end -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def scale_table(result: dict[str, Any]) -> str:
    """Sizes and policies, with what is assumed of one worker above."""
    assumed = result["assumed"]
    load = assumed["load"]
    said = (
        f"Assumed of a worker: {1e6 * load['token_s']:.0f} µs a prompt token, "
        f"{1e3 * load['overhead_s']:.0f} ms a prefill besides, {1e3 * load['step_s']:.0f} ms a "
        f"decode step, {load['token_bytes'] / 1024:.0f} KiB of KV a token, "
        + ", ".join(
            f"{1e-9 / byte_s:.0f} GB/s from {name}" for name, (_, byte_s) in load["tiers"].items()
        )
        + f", {assumed['memory_gib']} GiB of memory tier, "
        f"${assumed['dollars_per_gpu_hour']} an hour. Requests: {assumed['top_k']} documents of "
        f"{assumed['chunk_tokens']} tokens, of one topic of {assumed['topic_documents']}; topics "
        f"by Zipf's law ({assumed['alpha']}); {assumed['answer_tokens']} tokens of answer. "
        f"{assumed['chunks']:,} chunks, {100 * assumed['stored_share']:.0f} % of them stored; "
        f"chunks and memory are simulated at 1 : {assumed['scale']}. "
        f"Good: TTFT of at most {assumed['slo_ttft_s']} s."
    )
    head = [
        "workers", "slower tier", "policy", "requests/s each", "here", "TTFT p50", "p95",
        "good", "GB/s read", "$ / million good",
    ]  # fmt: skip
    rows = [
        [
            f"{row['workers']:,}",
            "yes" if row["slower_tier"] else "no",
            f"`{row['policy']}`",
            f"{row['rate_per_worker']:g}",
            f"{100 * row['local_hit_rate']:.0f} %",
            f"{1000 * row['ttft_p50_s']:.0f} ms",
            f"{1000 * row['ttft_p95_s']:.0f} ms",
            f"{100 * row['within_slo']:.1f} %",
            f"{row['slow_tier_gb_s']:.1f}",
            f"{row['dollars_per_million_good_answers']:.0f}",
        ]
        for row in result["rows"]
    ]
    return f"{said}\n\n{table(head, rows)}"


def sensitivity_table(result: dict[str, Any]) -> str:
    """One cost at a time."""
    rows = [
        [
            f"`{row['cost']}` × {row['factor']:g}",
            f"`{row['policy']}`",
            f"{100 * row['local_hit_rate']:.0f} %",
            f"{1000 * row['ttft_p95_s']:.0f} ms",
            f"{100 * row['within_slo']:.1f} %",
        ]
        for row in result["sensitivity"]
    ]
    return table(["cost", "policy", "here", "TTFT p95", "good"], rows)


def validation_table(result: dict[str, Any]) -> str:
    """Real and simulated, for each number of workers."""
    names = {
        "routed_here": "documents held by the chosen worker",
        "routed_elsewhere": "only by others",
        "reused_token_share": "document tokens from memory",
        "ttft_mean_s": "TTFT, mean (s)",
        "ttft_p95_s": "TTFT, p95 (s)",
        "answer_tokens_per_s": "answer tokens per second",
    }
    rows = [
        [
            f"{row['workers']} ({1000 * row['pace_token_s']:g} ms)",
            said,
            f"{row['real'][name]:.3g}",
            f"{row['simulated'][name]:.3g} ± {row['simulated_spread'][name]:.2g}",
            f"{row['simulated_to_real'][name]:.2f}",
        ]
        for row in result["rows"]
        for name, said in names.items()
    ]
    return table(["workers (pace of a token)", "", "real", "simulated", "ratio"], rows)


def main() -> None:
    """Replaces what stands between the markers."""
    scale = json.loads((RESULTS / "scale.json").read_text(encoding="utf-8"))
    parts = [scale_table(scale)]
    if scale["sensitivity"]:
        parts += [
            f"{scale['sensitivity'][0]['workers']} workers with a slower tier, one cost at a time:",
            sensitivity_table(scale),
        ]
    validated = RESULTS / "validate.json"
    if validated.exists():
        parts = [
            "Against real workers (`python -m benchmarks.fleet.validate`):",
            validation_table(json.loads(validated.read_text(encoding="utf-8"))),
            *parts,
        ]
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    text = "\n\n".join(parts)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
