"""A secret in a neighbour's documents, and the KV of one's own: with permissions no answer depends
on it, by any method. With a metadata filter it does where chunks stand behind others, which shows
that these tries would find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.retrieval.extraction import BEHIND, SECRETS, SERVED, make_worlds, tried
from tests.e2e.service import Service
from tests.e2e.test_tenants import acting


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["primer", "system", "neighbours"])
def test_no_answer_tells_a_neighbour_s_secret(tmp_path: Path, model: Path, mode: str) -> None:
    data = tmp_path / "data"
    worlds = make_worlds(data, SECRETS[:2])
    with Service(model, data, prefix_mode=mode, **SERVED) as service:
        acting(service, worlds[0].owner)
        found = tried(str(service.http.base_url), worlds)
    assert len(found["permissions"]) > 10
    told = {name for name, each in found["permissions"].items() if each["told_apart"] > 1}
    assert not told  # with the same answer to all of them, a secret that is spoken is a guess
    differing = {name for name, each in found["filter"].items() if each["told_apart"] > 1}
    assert bool(differing) == (mode in BEHIND), differing
