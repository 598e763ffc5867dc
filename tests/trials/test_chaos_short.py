"""A short episode of `python -m tests.trials.chaos`, the same every time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trials.chaos.campaign import Plan, run

PLAN = Plan(seed=4, minutes=10, actions=4, asked=6, others=8, questions=1, episodes=1)


@pytest.mark.slow
def test_nothing_breaks(tmp_path: Path) -> None:
    journal = run(tmp_path / "run", PLAN)
    assert journal.violations == []
    counts = journal.counts
    assert counts["episodes"] == counts["calms checked"] == PLAN.episodes
    assert counts["actions"] == PLAN.actions and journal.total("kill ") > 0
    assert counts["answers compared"] > 0 and counts["documents acknowledged"] > 0
