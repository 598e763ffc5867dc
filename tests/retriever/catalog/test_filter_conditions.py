"""Filters in SQL against a simple evaluation in Python, and the messages for bad filters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.retriever.catalog.catalog import Catalog
from kvstitch.retriever.catalog.tables import catalog_database
from kvstitch.retriever.chunking import ChunkSpan
from kvstitch.retriever.documents import DocFilter, Document, document_revision
from kvstitch.retriever.embedders import EmbeddingSpace
from kvstitch.retriever.errors import InvalidQuery
from kvstitch.retriever.filters import MAX_DEPTH, MAX_STEPS, MAX_TESTS, MAX_VALUES, parse_filter
from tests.postgresql_server import DATABASES

SPACE = EmbeddingSpace("none", "1", 2)
ORDER = {"gt": gt, "gte": ge, "lt": lt, "lte": le}


def kind(value: object) -> str:
    if value is None or isinstance(value, bool | str):
        return type(value).__name__
    return "number" if isinstance(value, int | float) else "nested"


def same(a: object, b: object) -> bool:
    return kind(a) == kind(b) != "nested" and a == b


def passes(metadata: object, condition: Mapping[str, Any]) -> bool:
    """A second, simple implementation of the filter language; names with dots are not escaped."""
    return all(holds(metadata, key, value) for key, value in condition.items())


def holds(metadata: object, key: str, value: Any) -> bool:
    if key == "and":
        return all(passes(metadata, part) for part in value)
    if key == "or":
        return any(passes(metadata, part) for part in value)
    if key == "not":
        return not passes(metadata, value)
    found, here = True, metadata
    for name in key.split("."):
        found = found and isinstance(here, dict) and name in here
        here = here[name] if found and isinstance(here, dict) else None
    tests = value if isinstance(value, dict) else {"eq": value}
    return all(test(found, here, name, operand) for name, operand in tests.items())


def test(found: bool, here: Any, name: str, operand: Any) -> bool:
    match name:
        case "eq":
            return found and same(here, operand)
        case "ne":
            return not (found and same(here, operand))
        case "in":
            return found and any(same(here, one) for one in operand)
        case "nin":
            return not (found and any(same(here, one) for one in operand))
        case "exists":
            return found is operand
        case "prefix":
            return isinstance(here, str) and here.startswith(operand)
        case "contains":
            return isinstance(here, list) and any(same(one, operand) for one in here)
    ordered = found and kind(here) == kind(operand)
    return ordered and bool(ORDER[name](here, operand))


test.__test__ = False  # type: ignore[attr-defined]

# Few names and values, so that many random filters match something.
NAMES = st.sampled_from(["a", "b", "é 漢", 'q"$[0]', "eq"])
TEXTS = st.sampled_from(["", "a", "ab", "é", "1", "true", "漢字", "\x01\\", "😀", "￿"])
NUMBERS = st.sampled_from([0, 1, -1, 1.0, 0.5, 2**53 + 1, 2.0**53, 2**63 - 1, -0.0, 1e300])
SCALARS = st.none() | st.booleans() | TEXTS | NUMBERS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(".".join)
OPERANDS = {
    "eq": SCALARS,
    "ne": SCALARS,
    "in": st.lists(SCALARS, max_size=4),
    "nin": st.lists(SCALARS, max_size=4),
    **dict.fromkeys(ORDER, TEXTS | NUMBERS),
    "prefix": TEXTS,
    "contains": SCALARS,
    "exists": st.booleans(),
}
# Six leaves of two paths with five tests each are no more than one filter may have.
TESTS = st.lists(st.sampled_from([*OPERANDS]), min_size=1, max_size=5, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: OPERANDS[name] for name in names})
)
FILTERS = st.recursive(
    st.dictionaries(PATHS, SCALARS | TESTS, max_size=2),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"not": inner}),
        st.fixed_dictionaries({"and": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"or": st.lists(inner, min_size=1, max_size=3)}),
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module", params=DATABASES)
def catalog(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Catalog]:
    if request.param == "sqlite":
        catalog = Catalog(Path(tmp_path_factory.mktemp("filters")) / "catalog.db")
    else:
        url = request.getfixturevalue("postgresql_server").database()
        catalog = Catalog(catalog_database(url))
    catalog.start()
    yield catalog
    catalog.close()


def put(catalog: Catalog, doc_id: str, metadata: Mapping[str, Any], title: str = "") -> None:
    document = Document(doc_id, "x", title, metadata)
    vector = np.ones((1, 2), np.float32)
    revision = document_revision(document, "")
    catalog.upsert(document, revision, [ChunkSpan(0, 1, 1)], vector, SPACE)


def matching(catalog: Catalog, condition: Mapping[str, Any]) -> list[str]:
    page = catalog.page(1000, doc_filter=DocFilter(where=parse_filter(condition)))
    return [info.doc_id for info in page.documents]


@settings(max_examples=120, deadline=None)
@given(
    metadata=st.lists(st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=3),
    condition=FILTERS,
)
def test_sql_agrees_with_plain_python(
    catalog: Catalog, metadata: list[dict[str, Any]], condition: dict[str, Any]
) -> None:
    catalog.delete([info.doc_id for info in catalog.page().documents])
    for number, fields in enumerate(metadata):
        put(catalog, str(number), fields)
    expected = [str(n) for n, fields in enumerate(metadata) if passes(fields, condition)]
    assert matching(catalog, condition) == expected


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ({}, "abcd"),
        ({"year": {"gte": 2000, "lt": 2010}}, "a"),
        ({"year": {"gt": "2"}}, "b"),
        ({"year": {"ne": 2000}}, "bcd"),
        ({"year": {"exists": False}}, "d"),
        ({"who.name": {"prefix": "Ad"}}, "a"),
        ({"who.name.first": "x"}, ""),
        ({"tags": {"contains": "x"}}, "ab"),
        ({"tags": {"contains": 1}}, "c"),
        ({"tags": "x"}, ""),
        ({r"dc\.title": "T"}, "c"),
        ({r"dc\\.title": "T"}, ""),
        ({"or": [{"year": 2000}, {"not": {"tags": {"exists": True}}}]}, "ad"),
        ({"year": {"in": []}}, ""),
        ({"year": {"nin": []}}, "abcd"),
        ({"year": {"in": [2000, "2020", False]}}, "abc"),
        ({"who": {"eq": None}}, "b"),
    ],
)
def test_language(catalog: Catalog, condition: dict[str, Any], found: str) -> None:
    catalog.delete([info.doc_id for info in catalog.page().documents])
    put(catalog, "a", {"year": 2000, "who": {"name": "Ada"}, "tags": ["x", "y"]})
    put(catalog, "b", {"year": "2020", "who": None, "tags": ["x"]})
    put(catalog, "c", {"year": False, "dc.title": "T", "tags": [True, 1]})
    put(catalog, "d", {"who": "Ada"})
    assert "".join(matching(catalog, condition)) == found
    chunks = [chunk.doc_id for chunk in catalog.chunks(catalog.chunk_ids(DocFilter()))]
    assert sorted(chunks) == list("abcd")


def deep(depth: int) -> dict[str, Any]:
    condition: dict[str, Any] = {"a": 1}
    for _ in range(depth):
        condition = {"not": condition}
    return condition


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ([], "filter: must be an object, not a list"),
        (None, "filter: must be an object, not null"),
        ({"a": [1]}, "filter.a: must be a string, number, boolean or null, not a list"),
        ({"a": {}}, "filter.a: needs an operator"),
        ({"a": {"like": "x"}}, "filter.a.like: there is no such operator; use one of eq, ne"),
        ({"a": {"b": 1}}, "filter.a.b: there is no such operator"),
        ({"a": {"in": "x"}}, r"filter.a.in: must be a list, not a string"),
        ({"a": {"in": [1, [2]]}}, r"filter.a.in\[1\]: must be a string"),
        ({"a": {"gt": True}}, "filter.a.gt: must be a number or a string, not a boolean"),
        ({"a": {"lte": None}}, "filter.a.lte: must be a number or a string, not null"),
        ({"a": {"prefix": 1}}, "filter.a.prefix: must be a string, not a number"),
        ({"a": {"exists": 1}}, "filter.a.exists: must be true or false, not a number"),
        ({"a": float("nan")}, "filter.a: must be finite"),
        ({"a": 2**63}, "filter.a: integers go up to"),
        ({"a": "\0"}, "NUL"),
        ({"\ud800": 1}, "lone surrogate"),
        ({"and": {"a": 1}}, "filter.and: must be a list"),
        ({"or": []}, "filter.or: must be a list of at least one"),
        ({"or": [{"a": 1}, {"and": [{}, 3]}]}, r"filter.or\[1\].and\[1\]: must be an object"),
        ({"not": 3}, "filter.not: must be an object"),
        ({"": 1}, "filter.: a path is"),
        ({"a..b": 1}, "a path is"),
        ({"a.": 1}, "a path is"),
        ({"a\\": 1}, "backslash"),
        ({".".join("a" * (MAX_STEPS + 1)): 1}, "a path is 1 to"),
        (deep(MAX_DEPTH + 1), "nested deeper than"),
        ({str(n): n for n in range(MAX_TESTS + 1)}, "more than 64 tests"),
        ({"a": {"in": [0] * (MAX_VALUES + 1)}}, "more than 1000 values"),
        ({"and": [{"a": {"in": [0] * 600}}] * 2}, r"filter.and\[1\].a.in: more than"),
        ({3: 4}, "names must be strings"),
    ],
)
def test_faults_are_named_with_their_place(condition: object, message: str) -> None:
    with pytest.raises(InvalidQuery, match=message):
        parse_filter(condition)


def test_the_largest_filter_runs(catalog: Catalog) -> None:
    put(catalog, "a", {})
    everyone = [info.doc_id for info in catalog.page().documents]
    path = ".".join("a" * MAX_STEPS)
    values = list(range(MAX_VALUES // MAX_TESTS))
    assert matching(catalog, {"and": [{path: {"nin": values}}] * MAX_TESTS}) == everyone
    assert matching(catalog, {"or": [{path: {"in": values}}] * MAX_TESTS}) == []
    assert matching(catalog, deep(MAX_DEPTH)) == []


def test_names_are_looked_for_in_id_and_title(catalog: Catalog) -> None:
    """In whatever case, also beyond ASCII; no character stands for others; with any filter."""
    for doc_id, title, lang in (("a/1", "Straße", "de"), ("B_2", "ÉTÉ", "fr"), ("c%3", "", "de")):
        put(catalog, doc_id, {"tongue": lang}, title)

    def found(named: str, **only: Any) -> list[str]:
        where = parse_filter({"tongue": {"exists": True}, **only})
        page = catalog.page(doc_filter=DocFilter(where=where, named=named))
        return [info.doc_id for info in page.documents]

    assert found("STRASSE") == ["a/1"] and found("été") == ["B_2"] and found("b_") == ["B_2"]
    assert found("%") == ["c%3"] and found("_") == ["B_2"] and found("'") == []
    assert found("") == ["B_2", "a/1", "c%3"] and found("", tongue="de") == ["a/1", "c%3"]
    assert found("3", tongue="fr") == []
