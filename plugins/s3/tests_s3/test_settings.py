"""The settings that name a bucket, where they stand, and what is said without the plugin."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any

import pytest

from kvstitch.encryption.keyring import Keyring
from kvstitch.service.cli.options import add_settings, settings_of
from kvstitch.service.errors import InvalidSetting
from kvstitch.service.plugins import manager
from kvstitch.service.settings import load
from kvstitch.service.worker.loading.cost_model import TierEstimates
from kvstitch.service.worker.server.composition import open_store
from kvstitch_doctor.connections import check_tiers
from tests.service.plugins.loaded import plugins
from tests_s3.s3_server import BUCKET, S3Server


@pytest.mark.parametrize("url", ["http://bucket", "s3:///prefix"])
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidSetting, match="must be s3://bucket"):
        load(s3_url=url)


def test_options_name_the_bucket_of_a_worker(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_settings(parser)
    options = ["--s3", "s3://b/kv", "--s3-endpoint", "http://x", "--s3-region", "eu"]
    settings = settings_of(parser.parse_args([*options, "--write-tiers", " s3 , ssd"]))
    worker = settings.worker(tmp_path, "ipc://x")
    assert worker.plugin_tiers == ["s3"] and worker.write_tiers == "s3,ssd"
    with ExitStack() as opened:
        store = open_store(
            worker, opened, pin=False, on_change=lambda *_: None, keys=Keyring(active=False)
        )
        assert store.tier_names == ["memory", "ssd", "s3"]
    assert load(ssd_tier_gib=0, s3_url="s3://b").has_slower_tiers
    assert TierEstimates().seconds("s3", 100_000_000) == pytest.approx(1.04)
    with pytest.raises(InvalidSetting, match="'s3', a tier that is not set"):
        load(write_tiers="s3").worker(tmp_path, "ipc://x")


def test_doctor_asks_the_server(s3_at: S3Server) -> None:
    def found(url: str, endpoint: str = s3_at.endpoint) -> Any:
        settings = load(s3_url=url, s3_endpoint=endpoint, s3_region="us-east-1")
        return {finding.check: finding for finding in check_tiers(settings)}["s3"]

    assert found(f"s3://{BUCKET}/kv").level == "ok"
    assert "is missing" in found("s3://no-such-bucket").message
    gone = found(f"s3://{BUCKET}/kv", "http://127.0.0.1:1")
    assert gone.level == "fail" and "credentials" in gone.remedy


def test_without_the_plugin_a_start_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "kvstitch.toml"
    file.write_text('s3_url = "s3://bucket"\n')
    monkeypatch.setattr(manager, "entry_points", lambda group: EntryPoints([]))
    monkeypatch.delenv("KVSTITCH_S3_URL", raising=False)
    with plugins():
        with pytest.raises(
            InvalidSetting, match=r"s3_url is a setting of .* pip install kvstitch-s3"
        ):
            load(file)
        monkeypatch.setenv("KVSTITCH_S3_URL", "s3://bucket")
        with pytest.raises(InvalidSetting, match=r"KVSTITCH_S3_URL is .* pip install kvstitch-s3"):
            load()
