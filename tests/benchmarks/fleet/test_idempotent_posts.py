"""Posts with clashing idempotency keys at two gateways; and that the check would see a fault."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.fleet.idempotent_posts import prove
from tests.service.gateway.model_folders import make_folder
from tests.service.gateway.rig import running


@pytest.mark.parametrize("shared", [True, False])
def test_every_key_is_one_job(
    shared: bool, data: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = request.getfixturevalue("postgresql_url") if shared else ""
    folder = make_folder(tmp_path / "model")
    with ExitStack() as stack:
        urls = [
            stack.enter_context(running(folder, data / name, database=database)).url
            for name in "ab"
        ]
        outcome = prove(urls, 20, threads=8)
    if shared:
        assert outcome.violations == []
        assert (outcome.jobs, outcome.documents) == (20, 20)
        assert outcome.statuses[202] + outcome.statuses[422] == 80 and outcome.statuses[422] >= 2
    else:  # with a database of its own each gateway makes a job of a key
        assert sum("was taken as 2 jobs" in fault for fault in outcome.violations) == 20
