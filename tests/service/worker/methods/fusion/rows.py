"""What the tests of several fusion methods ask of a run."""

from __future__ import annotations

from tests.service.worker.tiny import Run


def document_rows(run: Run) -> list[int]:
    """Document rows that the last layer computed."""
    first = run.layout.segments[0].end
    return [t for t in run.result.rows.tolist() if first <= t < run.layout.question_start]
