"""Every keyword: what is held of it, against another library's reading of the same schema."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from tests.service.grammars.forms import Forms

BASE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
KIND = {"kind": {"enum": ["x", "y"]}, "z": {"type": "boolean"}}
LETTERS = {name: {"type": "boolean"} for name in "abcd"}

HELD: dict[str, Any] = {
    "unknown formats": {"type": "string", "format": "int32", "maxLength": 4},
    "nullable": {"type": "integer", "nullable": True, "maximum": 9},
    "decimals": {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "maxLength": 6},
    "a password": {"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*\d)[A-Z\d]{3,6}$"},
    "a base and an extension": {
        "allOf": [
            {"$ref": "#/$defs/Base"},
            {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ],
        "$defs": {"Base": BASE},
    },
    "a closed base": {
        "allOf": [BASE, {"properties": {"a": True, "b": {"type": "null"}}, "required": ["b"]}],
        "unevaluatedProperties": False,
    },
    "beside a reference": {
        "$ref": "#/$defs/Base", "properties": {"c": {"const": 1}}, "$defs": {"Base": BASE},
    },
    "anyOf beside properties": {
        **BASE,
        "anyOf": [{"properties": {"b": {"const": 1}}, "required": ["b"]}, {"required": ["c"],
                  "properties": {"c": {"type": "null"}}}],
    },
    "required outside properties": {**BASE, "properties": {"b": {"const": 2}}},
    "if": {
        "type": "object", "properties": KIND, "required": ["kind"],
        "if": {"properties": {"kind": {"const": "x"}}, "required": ["kind"]},
        "then": {"required": ["z"]}, "else": {"properties": {"z": False}},
    },
    "dependentRequired": {
        "type": "object", "properties": LETTERS, "dependentRequired": {"a": ["b"], "c": ["d"]},
    },
    "dependentSchemas": {
        "type": "object", "properties": LETTERS, "dependentSchemas": {"a": {"required": ["d"]}},
    },
    "not required": {"type": "object", "properties": LETTERS, "not": {"required": ["b"]}},
    "contains": {
        "type": "array", "items": {"type": "integer", "maximum": 99, "minimum": 0}, "maxItems": 4,
        "contains": {"const": 5}, "minContains": 2,
    },
    "propertyNames": {
        "type": "object", "propertyNames": {"pattern": "^[a-f]{1,3}$"}, "minProperties": 3,
        "additionalProperties": {"type": "boolean"},
    },
    "named by an enumeration": {
        "type": "object", "propertyNames": {"enum": ["p", "q"]},
        "additionalProperties": {"type": "boolean"},
    },
    "named by an enumeration that is defined elsewhere": {
        "type": "object", "propertyNames": {"$ref": "#/$defs/Colour"}, "title": "Value",
        "additionalProperties": {"type": "number", "minimum": 0, "maximum": 9},
        "$defs": {"Colour": {"$ref": "#/$defs/C"}, "C": {"enum": ["red", "blue"], "type": "string",
                                                         "title": "Colour"}},
    },
    "an open map": {
        "type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 4,
    },
    "numbers of properties": {
        "type": "object", "properties": LETTERS, "minProperties": 2, "maxProperties": 3,
    },
    "a set of few values": {
        "type": "array", "items": {"enum": ["x", "y", "z"]}, "uniqueItems": True, "minItems": 2,
    },
    "oneOf of kinds": {
        "oneOf": [
            {"type": "object", "properties": {"t": {"const": t}}, "required": ["t"]} for t in "ab"
        ]
    },
    "oneOf of required": {
        "oneOf": [
            {"type": "object", "properties": {t: {"const": 1}}, "required": [t]} for t in "ab"
        ]
    },
    "draft 4 bounds": {"type": "integer", "minimum": 3, "maximum": 9, "multipleOf": 2},
    "64 bits": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "lists in lists": {
        "$ref": "#/$defs/n",
        "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2}},
    },
}  # fmt: skip
FORMATS = [
    "date",
    "date-time",
    "time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uuid",
    *("iri", "uri-reference", "iri-reference", "uri-template", "idn-email", "idn-hostname"),
    *("json-pointer", "relative-json-pointer"),
]


@pytest.mark.parametrize("name", HELD)
def test_no_answer_violates_what_is_held(forms: Forms, name: str) -> None:
    written = forms.write(HELD[name], strict=True)
    assert written.unheld == []
    answers = forms.answers(written.grammar, 8)
    assert answers
    for answer in answers:
        jsonschema_rs.validate(HELD[name], answer)


@pytest.mark.parametrize("format", FORMATS)
def test_formats_are_what_parsers_take(forms: Forms, format: str) -> None:
    schema = {"type": "string", "format": format}
    answers = forms.answers(forms.write(schema).grammar, 8)
    assert answers
    for answer in answers:
        assert jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(answer), answer


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "not": {"const": "a"}}, "not"),
        ({"type": "string", "pattern": r"(?<!a)b"}, "pattern"),
        ({"oneOf": [{"type": "string"}, {"maxLength": 3, "type": "string"}]}, "oneOf"),
        ({"type": "array", "contains": {"const": 1}, "maxContains": 1}, "maxContains"),
        ({**BASE, "propertyNames": {"maxLength": 3}}, "propertyNames"),
        ({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}, "if"),
        (
            {"allOf": [{**BASE, "additionalProperties": False},
                       {"properties": {"b": {"const": 1}}, "required": ["b"]}]},
            "additionalProperties",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_held_is_named(forms: Forms, schema: Any, keyword: str) -> None:
    written = forms.write(schema)
    assert any(what.startswith(keyword) for what in written.unheld), written.unheld
    with pytest.raises(ValueError, match=f"strict: answers cannot be held to {keyword}"):
        forms.write(schema, strict=True)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"$ref": "#/$defs/nothing"}, "does not exist"),
        ({"$ref": "https://example.org/x"}, "does not fetch"),
        ({"$ref": "#"}, "nothing but itself"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "no JSON matches"),
        ({"properties": []}, "must be an object"),
        ({"type": "nothing"}, "type"),
        ({"allOf": [{"$ref": "#"}, {"type": "object"}]}, "circular"),
    ],
)
def test_a_schema_that_is_none_is_refused(forms: Forms, schema: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        forms.write(schema)


def test_json_is_compact(forms: Forms) -> None:
    written = forms.write({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": [2]}},
                           "required": ["a", "b"]})  # fmt: skip
    assert forms.answer(written.grammar, 0) == '{"a": 1, "b": [2]}'
