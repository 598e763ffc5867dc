"""A plugin outside the tree adds a method, a tier, a format, an index: a file and a hook each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvstitch.encryption.keyring import Keyring
from kvstitch.service.errors import InvalidRequest, InvalidSetting
from kvstitch.service.gateway.answers.response import SOURCE_OF_TIER
from kvstitch.service.plugins import VARIABLE, tiers
from kvstitch.service.settings import load
from kvstitch.service.worker.loading.cost_model import TierEstimates
from kvstitch.service.worker.methods.registry import make_fusion
from kvstitch.service.worker.server.composition import open_store
from kvstitch_doctor.connections import check_tiers
from tests.kvstore.chunks import make_chunk, make_key
from tests.plugins_outside import a_method, an_index
from tests.service.gateway.model_folders import make_folder
from tests.service.gateway.rig import running
from tests.service.plugins.loaded import plugins

MODULE = "tests.plugins_outside.registration"


@pytest.fixture(autouse=True)
def outside() -> Iterator[None]:
    with plugins(MODULE):
        yield


def test_a_method() -> None:
    made = make_fusion("last_rows", {"rows": 3})
    assert isinstance(made, a_method.Method) and made.rows == 3
    with pytest.raises(InvalidRequest, match="rows"):
        make_fusion("last_rows", {"rows": 0})


def test_a_tier(tmp_path: Path) -> None:
    given: dict[str, Any] = {"shelf_mib": 4, "data_dir": tmp_path, "ssd_tier_gib": 0.01}
    settings = load(**given, write_tiers="shelf")
    assert settings.has_slower_tiers and not load(ssd_tier_gib=0).has_slower_tiers
    with pytest.raises(InvalidSetting, match="'shelf', a tier that is not set"):
        load(write_tiers="shelf").worker(tmp_path, "ipc://x")
    assert ", shelf" in next(iter(check_tiers(settings))).message
    of_worker = settings.worker(tmp_path, "ipc://x")
    key, chunk = make_key(), make_chunk()
    with ExitStack() as opened:
        store = open_store(
            of_worker, opened, pin=False, on_change=lambda *_: None, keys=Keyring(active=False)
        )
        assert [tier.name for tier in store.stats().tiers] == ["memory", "ssd", "shelf"]
        store.put(key, chunk)
        store.flush()
        entries = {tier.name: tier.usage.entries for tier in store.stats().tiers}
        assert entries == {"memory": 1, "ssd": 0, "shelf": 1}
    assert TierEstimates().seconds("shelf", 50_000_000) == pytest.approx(1.002)
    assert SOURCE_OF_TIER[tiers()["shelf"].shown_as] == "s3"


def test_a_format_and_an_index(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    with running(folder, tmp_path / "data", counting_index=True) as rig:
        talk = ("moon.talk", b"The moon\n0:01 It is\n0:05 made of cheese.\n", "text/x-talk")
        sent = rig.http.post("/admin/precompute", files={"file": talk})
        assert rig.finished(sent.json()["job_id"])["state"] == "succeeded"
        before = an_index.CountingIndex.searches
        body = {"query": "What is the moon made of?", "retrieval": "dense"}
        (found,) = rig.http.post("/v1/search", json=body).json()["results"]
        assert (found["text"], found["title"]) == ("It is made of cheese.", "The moon")
        assert an_index.CountingIndex.searches > before


def test_what_it_brings_is_loaded_where_it_is_used() -> None:
    code = "import sys\nfrom service.cli import parser\nparser()\nsys.exit('torch' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path)), VARIABLE: MODULE}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
