"""A new service: what the page offers while there is nothing, until the first answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from kvstitch.service.settings import demo_model
from tests.e2e.console.browser import Console
from tests.e2e.console.looks import ONE_AT_ONCE
from tests.e2e.embedding_server import IN_PROCESS
from tests.e2e.service import Service

pytestmark = pytest.mark.exhaustive

ANSWERS = {
    "Which animal does Quentin Bruvik keep?": "goat",
    "Which tree grows in Saint Zelmund?": "oak",
    "Where does the Brave Bruand return every winter?": "Kyoto",
    "Who started Velulf Group?": "Albert",
}


@pytest.mark.parametrize("look", ONE_AT_ONCE)
def test_from_nothing_to_an_answer(
    browser: Browser, tmp_path: Path, look: dict[str, object]
) -> None:
    """By keyboard alone, and with the model that a new service serves: its answers are right."""
    with Service(demo_model(), tmp_path / "data", **IN_PROCESS) as service:
        console = Console(browser, service, **look)  # type: ignore[arg-type]
        page = console.ready("chat")
        page.get_by_text("There are no documents yet").first.wait_for()
        load = console.panel.get_by_role("button", name="Load sample documents")
        load.focus()
        page.keyboard.press("Enter")
        first = page.get_by_role("button", name="Which animal does Quentin Bruvik keep?")
        expect(first).to_be_focused()
        assert load.is_hidden()
        page.keyboard.press("Enter")
        exchange = console.exchange(1)
        expect(exchange.locator(".markdown")).to_have_text(re.compile(r"^goat( \[\d\])?$"))
        expect(exchange.locator(".chip").first).to_contain_text("Quentin Bruvik")
        for number, (question, answer) in enumerate(list(ANSWERS.items())[1:], 2):
            page.get_by_role("button", name="Clear").click()
            page.get_by_role("button", name=question).click()
            expect(console.exchange(1).locator(".markdown")).to_have_text(
                re.compile(rf"^{answer}( \[\d\])?$")
            )
            assert console.asked[number - 1]["collection"] == "samples"
        console.choose_tab("Documents")
        expect(page.locator("#documents tr")).to_have_count(5)
        page.get_by_role("button", name="Delete the collection").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        console.panel.get_by_text("There are no documents yet.").wait_for()
        console.close()
        assert console.wrong == []
