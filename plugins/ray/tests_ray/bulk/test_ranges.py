"""The input is cut so that every document is in exactly one range."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstitch.service.errors import InvalidRequest, InvalidSetting
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.settings import Settings
from kvstitch_ray.bulk import sources
from kvstitch_ray.bulk.range_table import RangeTable
from kvstitch_ray.bulk.ranges import DocumentReader, cut, line_ranges
from kvstitch_ray.bulk.records import Range, Run
from kvstitch_ray.bulk.sources import LocalSource, S3Source, Source, source
from tests_s3.s3_server import BUCKET, KEY_ID, SECRET, s3_server


def line(number: int, **fields: Any) -> str:
    return json.dumps({"doc_id": f"d{number}", "text": f"text {number}", **fields})


def reader(found: Source, **settings: Any) -> DocumentReader:
    return DocumentReader(
        found, Settings(**settings), tenant="t", collection="c", metadata={"year": 2024}
    )


def read(found: Source, parts: list[Range]) -> list[str]:
    documents = [item for part in parts for item in reader(found).read(part)]
    return [item.doc_id for item in documents if isinstance(item, IngestDocument)]


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("end", ["\n", ""])
def test_lines_are_in_one_range_each(
    tmp_path: Path, block_bytes: int, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", block_bytes)
    lines = [line(0), "", line(1), line(2), "  ", "", line(3), line(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + end)
    found = LocalSource(tmp_path)
    parts = list(line_ranges(found, "rows.jsonl", 2))
    assert [part.documents for part in parts] == [2, 2, 1]
    assert [part.first_line for part in parts] == [1, 4, 8]
    assert read(found, parts) == ["d0", "d1", "d2", "d3", "d4"]


def test_a_bad_line_fails_alone_and_is_named(tmp_path: Path) -> None:
    texts = [line(0), '{"doc_id": "d1"}', "{", line(3, unknown=1), line(4, text="x" * 2000)]
    (tmp_path / "rows.jsonl").write_text("\n".join(texts))
    found = LocalSource(tmp_path / "rows.jsonl")
    (part,) = line_ranges(found, "rows.jsonl", 100)
    items = list(reader(found, max_document_bytes=1024).read(part))
    assert isinstance(items[0], IngestDocument)
    assert items[0].key == ("t", "c", "d0")
    assert (items[0].title, items[0].metadata) == ("", {"year": 2024})
    bad = [item for item in items if not isinstance(item, IngestDocument)]
    assert [place for place, _ in bad] == [f"rows.jsonl, line {n}" for n in (2, 3, 4, 5)]
    assert "text" in bad[0][1] and "JSON" in bad[1][1] and "unknown" in bad[2][1]
    assert "larger than 1024 bytes" in bad[3][1]


def test_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.md", "a/c.txt", ".git/d.md", "e.exe", "f.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# Words\n" if name != "f.pdf" else "")
    found = LocalSource(tmp_path)
    assert sorted(file.name for file in found.files()) == ["a/c.txt", "b.md"]
    items = list(reader(found).read(Range("", 0, 0, 1, ["a/c.txt", "gone.md", "b.md"], 3)))
    assert isinstance(items[0], IngestDocument) and isinstance(items[2], IngestDocument)
    assert (items[0].kind, items[2].kind) == ("text", "md")
    assert items[1] == ("gone.md", "gone.md cannot be read: No such file or directory")


@pytest.fixture
def table(postgresql_url: str) -> Iterator[RangeTable]:
    made = RangeTable(postgresql_url)
    made.start()
    made.begin(Run("run", "", "", ""))
    yield made
    made.close()


def test_only_what_is_new_is_cut_again(tmp_path: Path, table: RangeTable) -> None:
    for number in range(5):
        (tmp_path / f"{number}.md").write_text("words")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(map(line, range(4))))
    found = LocalSource(tmp_path)
    assert cut(found, table, "run", 2) == 3 + 2
    assert cut(found, table, "run", 2) == 0
    rows.write_text("\n".join(map(line, range(6))))
    (tmp_path / "new.md").write_text("words")
    assert cut(found, table, "run", 2) == 1 + 3
    assert len(table.free("run")) == 3 + 1 + 3


def test_an_s3_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with s3_server() as server:
        client = server.client()
        content = "\n".join(map(line, range(5))).encode()
        for name, body in (("in/rows.jsonl", content), ("in/a.md", b"# A"), ("out/b.md", b"# B")):
            client.put_object(Bucket=BUCKET, Key=name, Body=body)
        found = S3Source(f"s3://{BUCKET}/in", endpoint=server.endpoint, region="us-east-1")
        assert sorted(file.name for file in found.files()) == ["a.md", "rows.jsonl"]
        parts = list(line_ranges(found, "rows.jsonl", 2))
        assert read(found, [*parts, Range("", 0, 3, 1, ["a.md"], 1)]) == [
            "d0", "d1", "d2", "d3", "d4", "a.md",
        ]  # fmt: skip
        (alone,) = S3Source(f"s3://{BUCKET}/in/rows.jsonl", endpoint=server.endpoint).files()
        assert (alone.name, alone.size) == ("rows.jsonl", len(content))
        missing = S3Source(f"s3://{BUCKET}/x.jsonl", endpoint=server.endpoint, region="us-east-1")
        with pytest.raises(InvalidRequest, match="cannot be read"):
            list(missing.files())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere", "no such"),
        ("file.md", "kvstitch ingest"),
        ("https://x", "s3://"),
        ("s3://", "no bucket"),
    ],
)
def test_an_input_that_cannot_be_used(
    given: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.md").write_text("words")
    with pytest.raises(InvalidSetting, match=message):
        source(given)
