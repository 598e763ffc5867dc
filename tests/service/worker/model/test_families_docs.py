"""The table of families in docs/models.md says what the families do."""

from __future__ import annotations

import pytest

from scripts.families_docs import PAGE, table
from service.worker.model.families import family_decoder
from service.worker.model.supported import FAMILIES

ROWS = {line.split("`")[1]: line for line in table().splitlines() if line.startswith("| `")}
ROWS.pop("model_type")


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_row_tells_how_a_family_decodes(family: str) -> None:
    plain = family_decoder(family).has_plain_layers
    assert ("one kernel call" in ROWS[family]) == plain


def test_every_family_has_a_row_and_the_page_has_the_table() -> None:
    assert set(ROWS) == set(FAMILIES)
    assert table() in PAGE.read_text(encoding="utf-8")
