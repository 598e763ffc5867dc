"""Nobody else reads the data folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from kvstitch.service.gateway.data_folder import make_private
from tests.service.gateway.rig import running


def _open_to_others(folder: Path) -> list[str]:
    found = []
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):  # the index writes its files anew meanwhile
            if path.lstat().st_mode & 0o077 and not path.is_symlink():
                found.append(str(path))
    return found


def test_what_an_earlier_release_has_written_becomes_private(folder: Path, data: Path) -> None:
    before = os.umask(0o022)
    try:
        with running(folder, data) as rig:
            rig.ingest()
        for path in (data, *data.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        assert _open_to_others(data)
        os.umask(0o077)  # as `serve` does
        with running(folder, data) as rig:
            rig.ingest([{"doc_id": "new", "text": "A new document."}])
            assert _open_to_others(data) == []
        assert _open_to_others(data) == []
    finally:
        os.umask(before)


def test_links_and_the_folder_of_the_kv_are_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("of somebody else")
    elsewhere.chmod(0o644)
    data = tmp_path / "data"
    (data / "kv").mkdir(parents=True)
    (data / "kv").chmod(0o755)
    (data / "link").symlink_to(elsewhere)
    make_private(data, beside=data / "kv")
    assert elsewhere.stat().st_mode & 0o777 == 0o644
    assert (data / "kv").stat().st_mode & 0o777 == 0o755
    assert data.stat().st_mode & 0o777 == 0o700
