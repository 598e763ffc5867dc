"""The ranges of runs in PostgreSQL: claimed by one worker at a time, by the server's clock.

    open ── claim ── claimed, with a sign of life every BEAT_S ── done
     ^                  │ silent for LEASE_S, or given back         └ or failed: given up
     └──────────────────┘

A range that its worker leaves half-way is simply done again: what is stored is found, because
documents have their ids and KV has content keys.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from retriever.sql.connection import Connection, Row
from retriever.sql.postgresql import Postgresql, PostgresqlError
from service.bulk.records import Counts, NewRange, Range, Run, Standing
from service.bulk.schema import SCHEMA, STEPS
from service.errors import InvalidSetting
from service.gateway.shared_schema import translated

LEASE_S = 15.0  # as gateways have
BEAT_S = 2.0
MAX_ATTEMPTS = 5  # claims of one range in a run of the command, before it is given up
RATE_S = 300.0  # over which a rate is taken
_NOW = "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
_COUNTS = ("done", "failed", "chunks", "tokens", "stored", "present", "bytes")


class RangeTable:
    """Thread-safe; every call blocks, and raises DatabaseUnavailable where PostgreSQL is away.

    Args:
        url: Of the database.
        lease_s: A range whose worker is silent for so long is free.
    """

    def __init__(self, url: str, *, connections: int = 4, lease_s: float = LEASE_S) -> None:
        self._postgresql = Postgresql(url, SCHEMA, connections=connections)
        self._lease_s = lease_s
        # Whether a range may be taken: its worker has left it, or fell silent.
        self._free = f"(state = 'open' OR (state = 'claimed' AND seen < {_NOW} - {lease_s}))"

    def start(self) -> None:
        """Connect, and make the tables.

        Raises:
            InvalidSetting: It cannot be reached, or a later release has written it.
        """
        try:
            self._postgresql.start()
            self._postgresql.migrate(STEPS)
        except PostgresqlError as error:
            raise InvalidSetting(f"database (KVSTITCH_DATABASE): {error}") from error

    def close(self) -> None:
        self._postgresql.close()

    def locked(self, lock: int) -> AbstractContextManager[None]:
        """Hold an advisory lock."""
        return self._postgresql.locked(lock)

    # -- of the driver ---------------------------------------------------------------------------

    def begin(self, run: Run) -> None:
        """Note a run, unless it is there. What failed of it may be tried again."""
        with translated(), self._postgresql.transaction() as write:
            write.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (run.run_id, run.input, run.tenant, run.collection,
                 json.dumps(run.metadata, sort_keys=True), time.time()),
            )  # fmt: skip
            write.execute(
                "UPDATE ranges SET state = 'open', attempts = 0 WHERE run_id = ? AND "
                "(state IN ('open', 'failed') OR (state = 'done' AND failed > 0))",
                (run.run_id,),
            )

    def again(self, run_id: str) -> None:
        """All ranges are to be done again, e.g. because a tier has lost its content."""
        with translated(), self._postgresql.transaction() as write:
            write.execute(
                "UPDATE ranges SET state = 'open', attempts = 0 WHERE run_id = ? AND "
                "state IN ('done', 'failed')",
                (run_id,),
            )

    def versions(self, run_id: str) -> dict[str, str]:
        """Versions of the files that were cut."""
        with translated(), self._postgresql.transaction(snapshot=True) as read:
            rows = read.execute("SELECT path, version FROM files WHERE run_id = ?", (run_id,))
            return {row["path"]: row["version"] for row in rows}

    def add(self, run_id: str, files: dict[str, str], ranges: Sequence[NewRange]) -> None:
        """Add the ranges of files, in place of those of their earlier versions; all or nothing.

        Args:
            files: Versions by path.
        """
        with translated(), self._postgresql.transaction() as write:
            paths = write.listed(files)
            write.execute(
                f"DELETE FROM ranges WHERE run_id = ? AND path {write.in_texts}", (run_id, paths)
            )
            write.executemany(
                "INSERT INTO files VALUES (?, ?, ?) ON CONFLICT (run_id, path) "
                "DO UPDATE SET version = excluded.version",
                [(run_id, path, version) for path, version in files.items()],
            )
            write.executemany(
                "INSERT INTO ranges (run_id, path, start, length, first_line, files, documents) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (run_id, each.path, each.start, each.length, each.first_line,
                     json.dumps(each.files), each.documents)
                    for each in ranges
                ],
            )  # fmt: skip

    def free(self, run_id: str) -> list[int]:
        """Numbers of the ranges that can be taken now."""
        query = f"SELECT number FROM ranges WHERE run_id = ? AND {self._free} ORDER BY number"
        with translated(), self._postgresql.transaction(snapshot=True) as read:
            return [row["number"] for row in read.execute(query, (run_id,))]

    # -- of the workers --------------------------------------------------------------------------

    def claim(self, number: int, owner: str) -> Range | None:
        """Take a range; None if it is done, or another's.

        A range that was claimed too often is given up: its documents may be what workers die of.
        """
        with translated(), self._postgresql.transaction() as write:
            row = write.execute(
                f"SELECT * FROM ranges WHERE number = ? AND {self._free}{write.skip_locked}",
                (number,),
            ).fetchone()
            if row is None:
                return None
            if row["attempts"] >= MAX_ATTEMPTS:
                message = f"given up after {MAX_ATTEMPTS} attempts, in which its worker died"
                _end(write, number, "failed", [["", message]])
                return None
            write.execute(
                f"UPDATE ranges SET state = 'claimed', owner = ?, seen = {_NOW}, began = {_NOW}, "
                "attempts = attempts + 1, errors = '[]', "
                f"{', '.join(f'{name} = 0' for name in _COUNTS)} WHERE number = ?",
                (owner, number),
            )
            return _range(row)

    def beat(self, number: int, owner: str, counts: Counts) -> bool:
        """Give a sign of life; False if the range is another's by now."""
        return self._write(number, owner, counts, "claimed")

    def finish(self, number: int, owner: str, counts: Counts) -> bool:
        """The range is done; False if it is another's by now."""
        return self._write(number, owner, counts, "done")

    def give_back(self, number: int, owner: str, reason: str) -> None:
        """The range could not be done now; after too many attempts it is given up."""
        with translated(), self._postgresql.transaction() as write:
            row = write.execute(
                "SELECT attempts FROM ranges WHERE number = ? AND owner = ? AND state = 'claimed'"
                f"{write.for_update}",
                (number, owner),
            ).fetchone()
            if row is not None:
                state = "failed" if row["attempts"] >= MAX_ATTEMPTS else "open"
                _end(write, number, state, [["", reason]])

    def _write(self, number: int, owner: str, counts: Counts, state: str) -> bool:
        with translated(), self._postgresql.transaction() as write:
            done = write.execute(
                f"UPDATE ranges SET state = ?, seen = {_NOW}, errors = ?, "
                f"{', '.join(f'{name} = ?' for name in _COUNTS)} "
                "WHERE number = ? AND owner = ? AND state = 'claimed'",
                (state, json.dumps(counts.errors), *(getattr(counts, name) for name in _COUNTS),
                 number, owner),
            )  # fmt: skip
            return bool(done.rowcount == 1)

    # -- for people ------------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """All runs, newest first."""
        with translated(), self._postgresql.transaction(snapshot=True) as read:
            return [_run(row) for row in read.execute("SELECT * FROM runs ORDER BY created DESC")]

    def standing(self, run: Run) -> Standing:
        """How far a run is."""
        # Of bigints the sum is a decimal number.
        sums = ", ".join(f"CAST(coalesce(sum({name}), 0) AS BIGINT) AS {name}" for name in _COUNTS)
        with translated(), self._postgresql.transaction(snapshot=True) as read:
            states = read.execute(
                "SELECT state, count(*) AS n FROM ranges WHERE run_id = ? GROUP BY state",
                (run.run_id,),
            ).fetchall()
            all_of = read.execute(
                f"SELECT CAST(coalesce(sum(documents), 0) AS BIGINT) AS documents, {sums} "
                "FROM ranges WHERE run_id = ?",
                (run.run_id,),
            ).fetchone()
            recent = read.execute(
                f"SELECT {_NOW} AS now, min(began) AS began, max(seen) AS seen, {sums}, "
                f"count(DISTINCT owner) FILTER (WHERE state = 'claimed' AND seen >= {_NOW} - "
                f"{self._lease_s}) AS workers FROM ranges WHERE run_id = ? "
                f"AND began > 0 AND seen > {_NOW} - {RATE_S}",
                (run.run_id,),
            ).fetchone()
        chunk_rate = token_rate = eta = None
        if recent["began"] is not None and recent["seen"] > recent["began"] and recent["chunks"]:
            seconds = recent["seen"] - recent["began"]
            chunk_rate, token_rate = recent["chunks"] / seconds, recent["tokens"] / seconds
            left = all_of["documents"] - all_of["done"] - all_of["failed"]
            worked = recent["done"] + recent["failed"]
            eta = left * seconds / worked if worked and recent["workers"] else None
        return Standing(
            run=run,
            ranges={row["state"]: row["n"] for row in states},
            documents=all_of["documents"],
            workers=recent["workers"],
            chunks_per_s=chunk_rate,
            tokens_per_s=token_rate,
            eta_s=eta,
            **{name: all_of[name] for name in _COUNTS},
        )

    def errors(self, run_id: str, limit: int = 100) -> list[dict[str, str]]:
        """What failed, the first so many: of a document, or of a range ("")."""
        found: list[dict[str, str]] = []
        with translated(), self._postgresql.transaction(snapshot=True) as read:
            rows = read.execute(
                "SELECT errors FROM ranges WHERE run_id = ? AND errors <> '[]' ORDER BY number "
                "LIMIT ?",
                (run_id, limit),
            )
            for row in rows:
                found += [{"doc_id": d, "message": m} for d, m in json.loads(row["errors"])]
        return found[:limit]


def _end(write: Connection, number: int, state: str, errors: list[list[str]]) -> None:
    write.execute(
        "UPDATE ranges SET state = ?, owner = '', errors = ? WHERE number = ?",
        (state, json.dumps(errors), number),
    )


def _range(row: Row) -> Range:
    return Range(
        path=row["path"],
        start=row["start"],
        length=row["length"],
        first_line=row["first_line"],
        files=json.loads(row["files"]),
        documents=row["documents"],
        number=row["number"],
        attempts=row["attempts"] + 1,
    )


def _run(row: Row) -> Run:
    names = ("run_id", "input", "tenant", "collection", "metadata", "created")
    fields: dict[str, Any] = {name: row[name] for name in names}
    return Run(**{**fields, "metadata": json.loads(row["metadata"])})
