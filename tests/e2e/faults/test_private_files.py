"""Text of documents is written where other users of the machine cannot read it."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.service import Service


def test_only_the_owner_can_read_what_is_stored(model: Path, tmp_path: Path) -> None:
    with Service(model, tmp_path / "data") as service:
        service.ingest([{"doc_id": "private", "text": "The code of the safe is 1234."}])
        paths = [service.data_dir, *service.data_dir.rglob("*")]
        assert service.chunk_files() and len(paths) > 8
        assert [str(path) for path in paths if path.lstat().st_mode & 0o077] == []
