"""Which schemas answers are asked for by."""

from __future__ import annotations

from benchmarks.costs.structured import schemas, valid


def test_real_schemas_are_those_of_the_tests_and_a_seed_chooses_the_same() -> None:
    assert len(schemas(1000, 0, real=True)) == 300
    assert schemas(10, 3, real=True) == schemas(10, 3, real=True) != schemas(10, 4, real=True)


def test_generated_ones_are_objects() -> None:
    assert {form["type"] for form in schemas(5, 0, real=False)} == {"object"}


def test_an_answer_is_valid_or_not() -> None:
    form = {"type": "object", "required": ["a"]}
    assert valid({"text": '{"a": 1}'}, form)
    assert not valid({"text": '{"b": 1}'}, form) and not valid({"text": '{"a'}, form)
