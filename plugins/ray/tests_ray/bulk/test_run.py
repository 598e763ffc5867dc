"""Which commands go on with the same run, what is counted beforehand, and life without Ray."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from kvstitch.kvstore import chunk_file_bytes, encode_chunk
from kvstitch.service.errors import InvalidSetting
from kvstitch.service.settings import demo_model, load
from kvstitch_ray.bulk.dry_run import estimate, spec_of
from kvstitch_ray.bulk.records import Order
from kvstitch_ray.bulk.run import require_ray, run_of
from kvstitch_ray.bulk.sources import LocalSource
from tests.service.gateway.model_folders import make_folder

DATABASE = "postgresql://user@here/one"


def run_id(folder: Path, given: str = "/input", **settings: Any) -> str:
    made = load(database=DATABASE, redis_url="redis://user:one@cache:6379/0", **settings)
    return run_of(made, folder, Order(given)).run_id


def test_the_same_command_is_the_same_run(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    same = run_id(folder)
    assert run_id(folder, "/input/") == same
    assert run_id(folder, memory_tier_mib=1) == same
    others = [
        run_id(folder, "/other"),
        run_id(folder, codec="int8"),
        run_id(folder, chunk_tokens=32),
        run_id(folder, s3_url="s3://bucket"),
    ]
    assert len({same, *others}) == 5


def test_a_password_is_no_part_of_the_run(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    other = load(database=DATABASE, redis_url="redis://user:two@cache:6379/0")
    found = run_of(other, folder, Order("/input"))
    assert found.run_id == run_id(folder)


def test_a_dry_run_counts_what_the_tiers_would_take(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    shutil.copyfile(demo_model() / "config.json", folder / "config.json")
    rows = [json.dumps({"doc_id": f"d{n}", "text": "Ten letters. " * 30}) for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join([*rows, "{"]))
    settings = load(chunk_tokens=64, data_dir=tmp_path)
    found = estimate(
        LocalSource(tmp_path / "rows.jsonl"), settings, folder, collection="c", range_documents=3
    )
    assert (found.documents, found.failed) == (4, 1)
    assert found.chunks % 4 == 0 and found.chunks > 4
    assert found.tokens >= 4 * 390
    spec = spec_of(folder, settings)
    assert found.chunks * chunk_file_bytes(spec(1)) < found.tier_bytes
    assert found.tier_bytes <= found.chunks * chunk_file_bytes(spec(64))


def test_bytes_are_those_of_a_chunk(tmp_path: Path) -> None:
    import torch

    spec = spec_of(demo_model(), load(data_dir=tmp_path))(70)
    k, v = (torch.zeros(spec.layers, *spec.shape, dtype=spec.torch_dtype) for _ in "kv")
    assert encode_chunk(spec, list(k), list(v)).nbytes == chunk_file_bytes(spec)


def test_without_ray_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidSetting, match=r"pip install 'kvstitch\[ray\]'"):
        require_ray()
