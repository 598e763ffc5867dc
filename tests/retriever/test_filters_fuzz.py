"""Any JSON as a filter: a filter or InvalidQuery, never anything else, whatever its depth."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.retriever.errors import InvalidQuery
from kvstitch.retriever.filters import parse_filter

NAMES = st.sampled_from(
    [
        "and",
        "or",
        "not",
        "eq",
        "ne",
        "in",
        "nin",
        "gt",
        "lte",
        "exists",
        "prefix",
        "contains",
        "a.b",
    ]
) | st.text(max_size=5)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=500, deadline=None)
@given(json=ANYTHING)
def test_any_json(json: object) -> None:
    try:
        parse_filter(json)
    except InvalidQuery as error:
        assert str(error)


@pytest.mark.parametrize("name", ["and", "or", "not", "eq", "a"])
def test_depth(name: str) -> None:
    json: object = {"a": 1}
    for _ in range(50_000):
        json = {name: [json]} if name in ("and", "or") else {name: json}
    with pytest.raises(InvalidQuery):
        parse_filter(json)
