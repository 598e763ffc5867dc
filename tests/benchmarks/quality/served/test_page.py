"""Records of answers that were served: kept, read again, judged, and put into the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.quality.outcomes import occurring
from benchmarks.quality.served.asking import Record, Served, append, read
from benchmarks.quality.served.page import page


def served(text: str, right: bool, ttft_s: float) -> Served:
    return Served(text, right, ttft_s, 2400, {"method": "pie"}, 0.1, [3, 3], ["ssd", "memory"])


def record(question: str, full: bool, default: bool, documents: str, file: str = "a") -> Record:
    """`documents` names the document of each passage by a letter."""
    texts = {True: "It is 1,600.", False: "It is | 2000"}
    return Record(
        question,
        file,
        [(name, 100 * place) for place, name in enumerate(documents)],
        served(texts[default], default, 0.2 if full else 0.4),
        served(texts[full], full, 1.0),
    )


RECORDS = [
    record("both", True, True, "aabbc"),
    record("lost", True, False, "aaaab"),
    record("won", False, True, "bbbbb"),
    record("neither", False, False, "abcde"),
]


def test_the_table_shows_prompts_with_many_pieces_of_one_document_apart() -> None:
    rows = [line for line in page("A title", RECORDS).splitlines() if line.startswith("| ")]
    found = {
        cells[0]: cells[1:] for cells in ([c.strip() for c in r.split("|")[1:-1]] for r in rows)
    }
    #                     number, found, full, default, lost, won, same, TTFT
    assert found["all"] == ["4", "3", "2", "2", "1", "1", "50.0 %", "0.30"]
    few = found["up to 3 passages of one document"]
    assert few == ["2", "2", "1", "1", "0", "0", "100.0 %", "0.30"]
    assert found["4 or more"] == ["2", "1", "1", "1", "1", "1", "0.0 %", "0.30"]
    assert found["lost"][0] == "4" and found["won"][0] == "5"
    assert "both" not in found and "neither" not in found


def test_a_group_without_prompts_is_shown_as_such() -> None:
    assert "| 4 or more | 0 | – |" in page("A title", RECORDS[:1])


def test_records_are_read_as_they_were_written_but_for_a_line_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    assert read(file) == []
    for each in RECORDS:
        append(file, each)
    assert read(file) == RECORDS
    file.write_text(file.read_text()[:-20])
    assert read(file) == RECORDS[:-1]


@pytest.mark.parametrize(
    ("text", "answers", "right"),
    [
        ("A table has at most **1,600** columns.", ["1600", "1,600"], True),
        ("It has 2000 columns.", ["1600", "1,600"], False),
        ("Port 16514.", ["1651"], False),
        ("It listens on 127.0.0.1:9229", ["9229", "127.0.0.1:9229"], True),
        ("Use the --verify-data option", ["--verify-data"], True),
        ("", ["60"], False),
        ("anything", ["..."], False),
    ],
)
def test_an_answer_is_right_if_its_words_occur(text: str, answers: list[str], right: bool) -> None:
    assert any(occurring(text, answers)) is right
