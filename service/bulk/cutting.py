"""Cuts the input into ranges of some hundred documents.

Files of lines are read once, so that every range knows its documents and its first line. Files that
are documents are only listed.
"""

from __future__ import annotations

from collections.abc import Iterator

from service.bulk.range_table import RangeTable
from service.bulk.records import NewRange
from service.bulk.schema import CUTTING
from service.bulk.sources import InputFile, Source

RANGE_BYTES = 64 << 20  # of a range with several documents; bounds a worker's memory
WRITTEN_TOGETHER = 200  # ranges of whole files in one transaction


def cut(source: Source, table: RangeTable, run_id: str, range_documents: int) -> int:
    """Cut all files that are new or have changed since; returns how many ranges were added.

    Another driver that cuts the same input is waited for.

    Raises:
        InvalidRequest: The input cannot be read.
        DatabaseUnavailable: PostgreSQL does not answer.
    """
    added = 0
    with table.locked(CUTTING):
        known = table.versions(run_id)
        waiting: list[InputFile] = []
        for file in source.files():
            if known.get(file.name) == file.version:
                continue
            if not file.lines:
                waiting.append(file)
                if len(waiting) >= WRITTEN_TOGETHER * range_documents:
                    added += _add_files(table, run_id, waiting, range_documents)
                    waiting = []
                continue
            ranges = list(line_ranges(source, file.name, range_documents))
            table.add(run_id, {file.name: file.version}, ranges)
            added += len(ranges)
        added += _add_files(table, run_id, waiting, range_documents)
    return added


def _add_files(table: RangeTable, run_id: str, files: list[InputFile], range_documents: int) -> int:
    ranges = list(file_ranges(files, range_documents))
    if files:
        table.add(run_id, {file.name: file.version for file in files}, ranges)
    return len(ranges)


def file_ranges(files: list[InputFile], range_documents: int) -> Iterator[NewRange]:
    """Ranges of files that are documents."""
    names: list[str] = []
    size = 0
    for file in files:
        if names and (len(names) == range_documents or size + file.size > RANGE_BYTES):
            yield NewRange("", 0, size, 1, names, len(names))
            names, size = [], 0
        names.append(file.name)
        size += file.size
    if names:
        yield NewRange("", 0, size, 1, names, len(names))


def line_ranges(source: Source, name: str, range_documents: int) -> Iterator[NewRange]:
    """Ranges of a file of lines; blank lines are no documents."""
    start = position = documents = 0
    first_line = 1
    for line, text in enumerate(_lines(source.blocks(name)), 1):
        length = len(text)
        full = documents == range_documents or position + length - start > RANGE_BYTES
        if documents and full:
            yield NewRange(name, start, position - start, first_line, [], documents)
            start, first_line, documents = position, line, 0
        position += length
        documents += bool(text.strip())
    if documents:
        yield NewRange(name, start, position - start, first_line, [], documents)


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines with their ends."""
    rest: list[bytes] = []
    for block in blocks:
        *whole, last = block.split(b"\n")
        for text in whole:
            yield b"".join((*rest, text, b"\n"))
            rest = []
        if last:
            rest.append(last)
    if rest:
        yield b"".join(rest)
