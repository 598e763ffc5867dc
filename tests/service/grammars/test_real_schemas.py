"""Schemas that programs of others have made: accepted, and answers valid by another library."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest

from tests.service.grammars.forms import Forms
from tests.service.grammars.real_schemas import read


def check(forms: Forms, share: slice, least: float) -> None:
    schemas = read()[share]
    refused, valid = [], 0
    for each in schemas:
        try:
            written = forms.write(each["schema"])
        except ValueError as error:
            refused.append(f"{each['name']}: {error}")
            continue
        text = forms.answer(written.grammar, 0)
        if text is not None and not written.unheld:
            jsonschema_rs.validate(each["schema"], json.loads(text))
            valid += 1
    assert len(schemas) - len(refused) >= least * len(schemas), refused
    assert valid >= len(schemas) / 3


def test_a_tenth_of_them(forms: Forms) -> None:
    check(forms, slice(0, None, 10), 0.93)


@pytest.mark.slow
def test_all_of_them(forms: Forms) -> None:
    check(forms, slice(None), 0.97)
