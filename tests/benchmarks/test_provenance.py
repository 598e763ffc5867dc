"""The last lines of a page of results: every machine, version, commit and seed, each once."""

from __future__ import annotations

from typing import Any

from benchmarks.common.provenance import provenance


def environment(commit: str, *, changes: bool = False, gpu: str | None = None) -> dict[str, Any]:
    return {
        "cpu": "A CPU", "cores": 2, "gpu": gpu, "python": "3.11.7",
        "packages": {"torch": "2.13.0"}, "commit": commit, "uncommitted": changes,
    }  # fmt: skip


def test_one_run() -> None:
    text = provenance({"environment": environment("a" * 40), "seed": 7, "threads": 1})
    assert "- Machine: A CPU, 2 cores.\n" in text
    assert "- Versions: Python 3.11.7, torch 2.13.0.\n" in text
    assert "- Commit: aaaaaaaaaaaa.\n" in text
    assert text.endswith("- Seed: 7.\n- Threads: 1.\n")


def test_several_runs_at_any_depth_name_each_value_once() -> None:
    runs = [
        {"environment": environment("a" * 40), "seed": 1},
        {"environment": environment("a" * 40), "seed": [1, 2, 2]},
        {"environment": environment("b" * 40, changes=True, gpu="A GPU"), "seed": 3},
    ]
    text = provenance({"configurations": runs, "seed": None})
    assert "- Machine: A CPU, 2 cores; A CPU, 2 cores, A GPU.\n" in text
    assert "- Commit: aaaaaaaaaaaa, bbbbbbbbbbbb with changes.\n" in text
    assert "- Seed: 1, 2, 3.\n" in text
