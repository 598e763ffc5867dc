"""Hostile requests are as hostile as they say, and the same for the same seed."""

from __future__ import annotations

import io
import json
import random
import zipfile
from pathlib import Path

import pytest

from benchmarks.hostile import documents, grammars, ordinary, uploads
from benchmarks.hostile.reader import Seen
from retriever.analysis import languages
from service.gateway.schemas.generate import Guided


@pytest.mark.parametrize("kind", grammars.KINDS)
def test_grammars_get_past_the_gateways_first_look(kind: str) -> None:
    made = [form for name, form in grammars.grammars(24, seed=1) if name == kind]
    assert len(made) == 2
    for form in made:
        assert Guided.model_validate(form).kind in form


def test_no_two_are_alike_and_a_seed_makes_the_same(tmp_path: Path) -> None:
    forms = [json.dumps(form) for _, form in grammars.grammars(60, seed=0)]
    assert len(set(forms)) == 60
    assert forms == [json.dumps(form) for _, form in grammars.grammars(60, seed=0)]
    numbers = [n for n in range(38) if uploads.KINDS[n % 19] is not uploads._zip_bomb]
    files = [uploads.write(tmp_path, n, 0).read_bytes() for n in numbers]
    assert len(set(files)) == len(files)
    assert files[5] == uploads.write(tmp_path, numbers[5], 0).read_bytes()


def test_a_bomb_is_small_until_it_is_unpacked(tmp_path: Path) -> None:
    number = uploads.KINDS.index(uploads._zip_bomb)
    content = uploads.write(tmp_path, number, 0).read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked = sum(part.file_size for part in archive.infolist())
    assert unpacked > 200 * len(content)


def test_figures() -> None:
    seen = Seen([0.1, 0.2, 0.3], [0.01, 0.02, 0.03], ["x"])
    figures = seen.figures()
    assert figures["ttft_p50_ms"] == 200.0 and figures["tpot_p95_ms"] == 29.0
    assert (figures["answers"], figures["failed"]) == (3, 1)


def test_a_book_is_as_long_as_it_says() -> None:
    text = documents.book(20_000, random.Random(0))
    assert 20_000 <= len(text) < 20_200 and len(set(text.splitlines())) == text.count("\n")


def test_ordinary_documents_need_every_table_of_compounds() -> None:
    made = ordinary.ordinary_documents(seed=0)
    assert len({each["doc_id"] for each in made}) == len(made) == 48
    long = [each["text"] for each in made if len(each["text"]) >= 3000]
    assert {languages.guess(text) for text in long} >= set(languages._COMPOUNDING)
