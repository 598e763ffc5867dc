"""A folder of a thousand files of all kinds, through the command line into a real service: every
one of them is accounted for."""

from __future__ import annotations

import encodings.utf_8_sig  # noqa: F401  Python loads it late, when it may not read itself
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvstitch.client import Client
from kvstitch.service.cli import main
from tests.e2e import mixed_folder
from tests.e2e.conftest import Serve
from tests.e2e.mixed_folder import FILES, INGESTED

NOBODY = 65534


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that other users may enter, which pytest's are not."""
    mask = os.umask(0o022)  # another test's may be stricter
    folder = Path(tempfile.mkdtemp(prefix="kvstitch-mixed-"))
    folder.chmod(0o755)
    yield folder
    os.umask(mask)
    (folder / "locked").chmod(0o755)
    shutil.rmtree(folder)


@contextmanager
def without_root() -> Iterator[None]:
    """As a user for whom permissions hold."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.slow
def test_every_file_is_accounted_for(
    serve: Serve, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = mixed_folder.write(root)
    assert len(expected) == FILES
    ingested = sum(said == INGESTED for said in expected.values())
    with serve() as service:
        given = ["ingest", str(root), "--url", str(service.http.base_url)]

        def ingest(*more: str) -> tuple[int, str, str]:
            with without_root():
                code = main([*given, *more])
            out = capsys.readouterr()
            return code, out.out, out.err

        code, out, _ = ingest("--json")
        first: dict[str, Any] = json.loads(out)
        assert code == 1, "some failed"
        assert first["found"] == FILES and first["ingested"] == ingested == first["stored"]
        check_sums(first)
        said = {error["doc_id"]: error["message"] for error in first["errors"]}
        said |= {
            os.path.relpath(file["path"], root): file["reason"] for file in first["skipped_files"]
        }
        for name, what in expected.items():
            if what == INGESTED:
                assert name not in said, said[name]
            else:
                assert what in said.get(name, "nothing"), (name, what, said.get(name))
        assert len(said) == FILES - ingested

        code, out, err = ingest()
        assert code == 1
        failed, skipped = first["failed"], first["skipped"]
        assert (
            f"{FILES} found = 0 ingested + {ingested} unchanged + {skipped} skipped + "
            f"{failed} failed\n"
        ) in out
        for name, what in expected.items():
            assert what in (INGESTED, "in a hidden folder") or f"{name}: " in err, name
        with Client(str(service.http.base_url)) as client:
            listed = {document.doc_id for document in client.list_documents()}
        assert listed == {name for name, what in expected.items() if what == INGESTED}


def check_sums(result: dict[str, Any]) -> None:
    parts = ("ingested", "unchanged", "skipped", "failed", "cancelled", "sent")
    assert sum(result[name] for name in parts) == result["found"]
    for name in ("skipped", "failed"):
        assert sum(result[f"{name}_by_reason"].values()) == result[name]
