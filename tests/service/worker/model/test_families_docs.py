"""The table of families in docs/models.md says what the families do."""

from __future__ import annotations

from importlib import import_module

import pytest

from service.worker.model.families_docs import PAGE, table
from service.worker.model.supported import families

ROWS = {line.split("`")[1]: line for line in table().splitlines() if line.startswith("| `")}
ROWS.pop("model_type")


@pytest.mark.parametrize("family", sorted(families()))
def test_a_row_tells_how_a_family_decodes(family: str) -> None:
    decoder = import_module(f"service.worker.model.families.{family}").Model
    assert ("one kernel call" in ROWS[family]) == decoder.has_plain_layers


def test_every_family_has_a_row_and_the_page_has_the_table() -> None:
    assert set(ROWS) == families()
    assert table() in PAGE.read_text(encoding="utf-8")
