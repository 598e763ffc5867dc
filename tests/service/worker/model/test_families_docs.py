"""The table of families in docs/models.md is what the families say."""

from __future__ import annotations

from kvstitch.service.worker.model.supported import FAMILIES
from scripts.docs_tables import MODELS_PAGE, models_page


def test_every_family_has_a_row_and_the_page_has_the_table() -> None:
    page = MODELS_PAGE.read_text(encoding="utf-8")
    assert models_page(page) == page
    assert all(page.count(f"\n| `{family}` |") == 1 for family in FAMILIES)
