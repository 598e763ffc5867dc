"""A prefix mode that does harm is told, and only then."""

from __future__ import annotations

from typing import Any

from tuning.report import warnings


def row(mode: str, kl: float, method: str = "pie", codec: str = "raw") -> dict[str, Any]:
    fusion = {"method": method}
    return {
        "fusion": fusion, "codec": codec, "eviction": None, "prefix_mode": mode, "kl": {"mean": kl}
    }  # fmt: skip


def stages(*rows: dict[str, Any], stage: str = "prefix") -> list[dict[str, Any]]:
    return [{"name": "screen", "candidates": []}, {"name": stage, "candidates": rows}]


def test_harm_is_told_with_both_figures() -> None:
    rows = [row("system", 0.10), row("primer", 0.16), row("neighbours", 0.08), row("none", 0.4)]
    [text] = warnings(stages(*rows))
    assert text.startswith("prefix_mode primer does harm on these documents: KL 0.16 nats")
    assert "behind the system prompt alone 0.1 (mean of 1 configurations)" in text
    assert "use system" in text


def test_only_the_same_configuration_is_compared() -> None:
    """PIE behind primers beside a better method behind S says nothing about primers."""
    rows = [row("system", 0.05, "question_scout"), row("primer", 0.16), row("system", 0.2)]
    assert warnings(stages(*rows)) == []
    assert warnings(stages(row("system", 0.1, codec="int4"), row("primer", 0.16))) == []
    mixed = [
        *(row("system", kl, m) for m, kl in (("pie", 0.2), ("a3", 0.1))),
        *(row("primer", kl, m) for m, kl in (("pie", 0.1), ("a3", 0.15))),
    ]
    assert warnings(stages(*mixed)) == [], "on average it helps"


def test_nothing_compared_is_nothing_told() -> None:
    assert warnings(stages(row("system", 0.1), row("primer", 0.2), stage="screen")) == []
    assert warnings([]) == []
