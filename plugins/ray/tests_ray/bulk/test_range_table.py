"""Ranges are claimed by one worker at a time, on a real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvstitch.service.gateway.documents.membership import LEASE_S
from kvstitch_ray.bulk.range_table import MAX_ATTEMPTS, RangeTable
from kvstitch_ray.bulk.records import MAX_ERRORS, Counts, Range, Run

RUN = Run("0123456789abcdef", "/input", "", "default")


def ranges(count: int, path: str = "rows.jsonl") -> list[Range]:
    return [Range(path, 100 * n, 100, 10 * n + 1, [], 10) for n in range(count)]


@pytest.fixture
def table(postgresql_url: str) -> Iterator[RangeTable]:
    made = RangeTable(postgresql_url, connections=8)
    made.start()
    made.begin(RUN)
    members(made, *"abcdef", "me", "silent", "other")
    yield made
    made.close()


def members(table: RangeTable, *names: str, silent_s: float = 0.0) -> None:
    """Have these owners of ranges be members that have been silent for so long."""
    with table.database.write() as write:
        for name in names:
            write.exec_driver_sql(
                "INSERT INTO kvstitch_service.gateways VALUES (%s, %s, 2, "
                "CAST(extract(epoch FROM clock_timestamp()) AS double precision) - %s) "
                "ON CONFLICT (gateway_id) DO UPDATE SET seen = excluded.seen",
                (name, name, silent_s),
            )


def test_every_range_is_claimed_once_by_whoever_comes(table: RangeTable) -> None:
    table.add(RUN.run_id, {"rows.jsonl": "1"}, ranges(40))
    numbers = table.free(RUN.run_id)
    assert len(numbers) == 40
    start = threading.Barrier(6)

    def take(owner: str) -> list[int]:
        start.wait()
        return [number for number in numbers if table.claim(number, owner) is not None]

    with ThreadPoolExecutor(6) as threads:
        taken = list(threads.map(take, "abcdef"))
    assert sorted(number for each in taken for number in each) == numbers
    assert table.free(RUN.run_id) == []


def test_a_claim_tells_where_the_documents_are(table: RangeTable) -> None:
    table.add(RUN.run_id, {"a.md": "1", "b.md": "1"}, [Range("", 0, 9, 1, ["a.md", "b.md"], 2)])
    (number,) = table.free(RUN.run_id)
    part = table.claim(number, "me")
    assert part is not None
    assert (part.files, part.documents, part.attempts) == (["a.md", "b.md"], 2, 1)


def test_a_silent_worker_loses_its_range_and_cannot_finish_it(table: RangeTable) -> None:
    table.add(RUN.run_id, {"rows.jsonl": "1"}, ranges(1))
    (number,) = table.free(RUN.run_id)
    assert table.claim(number, "silent") is not None
    assert table.claim(number, "other") is None
    members(table, "silent", silent_s=LEASE_S + 1)
    assert table.free(RUN.run_id) == [number]
    again = table.claim(number, "other")
    assert again is not None and again.attempts == 2
    counts = Counts(done=10, chunks=20, tokens=200, stored=20, bytes=2000)
    assert not table.note_progress(number, "silent", counts)
    assert not table.finish(number, "silent", counts)
    assert table.progress(RUN).done == 0
    assert table.finish(number, "other", counts)
    progress = table.progress(RUN)
    assert (progress.done, progress.chunks, progress.ranges) == (10, 20, {"done": 1})
    assert progress.ended


def test_a_range_that_workers_die_of_is_given_up_until_the_command_is_given_again(
    table: RangeTable,
) -> None:
    table.add(RUN.run_id, {"rows.jsonl": "1"}, ranges(1))
    (number,) = table.free(RUN.run_id)
    for attempt in range(MAX_ATTEMPTS):  # of workers that are no members any more
        assert table.claim(number, f"dies-{attempt}") is not None
    assert table.claim(number, "next") is None
    assert table.progress(RUN).ranges == {"failed": 1}
    assert "given up" in table.errors(RUN.run_id)[0]["message"]
    table.begin(RUN)
    assert table.free(RUN.run_id) == [number]


def test_what_cannot_be_done_now_is_given_back_with_its_reason(table: RangeTable) -> None:
    table.add(RUN.run_id, {"rows.jsonl": "1"}, ranges(1))
    (number,) = table.free(RUN.run_id)
    assert table.claim(number, "me") is not None
    table.give_back(number, "me", "Redis is away")
    assert table.free(RUN.run_id) == [number]
    assert table.errors(RUN.run_id) == [{"doc_id": "", "message": "Redis is away"}]


def test_failed_documents_are_told_and_tried_again(table: RangeTable) -> None:
    table.add(RUN.run_id, {"rows.jsonl": "1"}, ranges(2))
    good, bad = table.free(RUN.run_id)
    for number in (good, bad):
        assert table.claim(number, "me") is not None
    counts = Counts(done=10)
    assert table.finish(good, "me", counts)
    for document in range(2 * MAX_ERRORS):
        counts.fail(f"d{document}", "bad")
    assert table.finish(bad, "me", counts)
    progress = table.progress(RUN)
    assert (progress.failed, progress.ranges) == (2 * MAX_ERRORS, {"done": 2})
    assert len(table.errors(RUN.run_id)) == MAX_ERRORS
    table.begin(RUN)
    assert table.free(RUN.run_id) == [bad]
    table.again(RUN.run_id)
    assert table.free(RUN.run_id) == [good, bad]


def test_documents_that_are_stored_in_part_are_told(table: RangeTable) -> None:
    table.add(RUN.run_id, {"rows.jsonl": "1"}, ranges(1))
    (number,) = table.free(RUN.run_id)
    assert table.claim(number, "me") is not None
    counts = Counts(done=10)
    counts.warn("scan.pdf", ["pages without text: 2", "pictures are not read (3)"])
    assert table.finish(number, "me", counts)
    assert table.progress(RUN).warned == 1 and table.errors(RUN.run_id) == []
    said = "pages without text: 2; pictures are not read (3)"
    assert table.warnings(RUN.run_id) == [{"doc_id": "scan.pdf", "message": said}]
    table.again(RUN.run_id)
    assert table.claim(number, "me") is not None
    assert table.progress(RUN).warned == 0 and table.warnings(RUN.run_id) == []


def test_tables_of_an_earlier_release_get_what_is_new(postgresql_url: str) -> None:
    made = RangeTable(postgresql_url)
    made.start()
    with made.database.write() as write:
        for column in ("warned", "warnings"):
            write.exec_driver_sql(f"ALTER TABLE kvstitch_bulk.ranges DROP COLUMN {column}")
        write.exec_driver_sql(
            "UPDATE kvstitch_bulk.alembic_version SET version_num = 'bulk_1' "
            "WHERE version_num = 'bulk_2'"
        )
    made.close()
    again = RangeTable(postgresql_url)
    again.start()
    again.begin(RUN)
    again.add(RUN.run_id, {"rows.jsonl": "1"}, ranges(1))
    assert again.progress(RUN).warned == 0 and again.warnings(RUN.run_id) == []
    again.close()


def test_a_changed_file_is_cut_anew(table: RangeTable) -> None:
    table.add(RUN.run_id, {"rows.jsonl": "1"}, ranges(3))
    table.add(RUN.run_id, {"other.jsonl": "1"}, ranges(1, "other.jsonl"))
    (kept,) = table.free(RUN.run_id)[3:]
    table.add(RUN.run_id, {"rows.jsonl": "2"}, ranges(2))
    assert len(table.free(RUN.run_id)) == 3
    assert kept in table.free(RUN.run_id)
    assert table.versions(RUN.run_id) == {"rows.jsonl": "2", "other.jsonl": "1"}
