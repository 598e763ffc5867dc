"""The Tiers tab of a service with two workers: each of them, also one that dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.e2e.conftest import Documents
from tests.e2e.console.browser import Console
from tests.e2e.console.looks import ALL, NARROW, Look
from tests.e2e.console.test_console_layout import TOO_SMALL, UNSEEN_FOCUS, axe
from tests.e2e.service import START_S, Service

pytestmark = pytest.mark.exhaustive

__all__ = ["axe"]


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, model: Path, twelve: Documents
) -> Iterator[Service]:
    with Service(model, tmp_path_factory.mktemp("fleet") / "data", workers=2) as running:
        running.until(lambda: ready(running) == 2, "both workers", START_S)
        running.ingest(twelve)
        yield running


def workers(service: Service) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = service.http.get("/status").json()["workers"]
    return told


def ready(service: Service) -> int:
    return sum(worker["reason"] is None for worker in workers(service))


def table(console: Console) -> Locator:
    return console.panel.get_by_role("table", name="Workers")


def row(console: Console, name: str) -> Locator:
    header = console.page.get_by_role("rowheader", name=name, exact=True)
    return table(console).get_by_role("row").filter(has=header)


def test_the_table_says_what_the_status_does(browser: Browser, fleet: Service) -> None:
    console = Console(browser, fleet)
    page = console.ready("tiers")

    def agree() -> bool:
        page.get_by_role("button", name="Refresh").click()
        told = workers(fleet)
        if any(worker["memory"] is None for worker in told):
            return False
        shown = [
            row(console, worker["name"]).locator("td").nth(column)
            for worker in told
            for column in (0, 1, 2, 7)
        ]
        wanted = [
            text
            for worker in told
            for text in ("ready", str(worker["running"]), str(worker["waiting"]), worker["device"])
        ]
        return [cell.text_content() for cell in shown] == wanted

    fleet.until(agree, "the page shows other workers than /status")
    told = workers(fleet)
    assert [worker["name"] for worker in told] == ["0", "1"]
    assert {worker["version"] for worker in told} == {"0.2.0"}
    # Documents were computed by both, and each holds what it computed.
    assert all(worker["memory"]["entries"] > 0 for worker in told)
    total = fleet.http.get("/status").json()["tiers"]["memory"]["entries"]
    assert sum(worker["memory"]["entries"] for worker in told) == total
    for name in ("0", "1"):
        meter = row(console, name).get_by_role("meter", name=f"RAM of worker {name} full")
        expect(meter).to_be_visible()
    expect(page.get_by_role("status").get_by_text("2 of 2 workers ready")).to_be_visible()
    console.close()
    assert console.wrong == []


@pytest.mark.parametrize("look", ALL)
def test_it_fits_and_axe_finds_nothing_serious(
    browser: Browser, fleet: Service, look: Look, axe: str
) -> None:
    console = Console(browser, fleet, bypass_csp=True, **look)  # axe is no script of this origin
    page = console.ready("tiers")
    table(console).get_by_role("rowheader").nth(1).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= look["width"]
    if look["width"] == NARROW:
        assert page.evaluate(TOO_SMALL) == []
        expect(table(console).get_by_role("columnheader")).to_have_text(
            ["Worker", "State", "Running", "Waiting", "In RAM"]
        )
    assert page.evaluate(UNSEEN_FOCUS) == []
    page.add_script_tag(content=axe)
    found: list[dict[str, Any]] = page.evaluate("axe.run().then((r) => r.violations)")
    console.close()
    assert [rule["id"] for rule in found if rule["impact"] in ("serious", "critical")] == []


def test_a_worker_that_dies_is_shown_with_its_reason(browser: Browser, fleet: Service) -> None:
    console = Console(browser, fleet, width=NARROW)
    page = console.ready("tiers")
    expect(page.get_by_text("2 of 2 workers ready")).to_be_visible()
    os.kill(workers(fleet)[1]["pid"], signal.SIGKILL)
    fleet.until(lambda: ready(fleet) == 1, "the death is not noticed")
    reason = workers(fleet)[1]["reason"]
    page.get_by_role("button", name="Refresh").click()
    expect(page.get_by_text("1 of 2 workers ready")).to_be_visible()
    dead = row(console, "1")
    expect(dead.get_by_text("not ready")).to_be_visible()
    assert reason and dead.locator(".worker-reason").text_content()
    expect(dead.locator("td.number").first).to_have_text("–")
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW
    fleet.until(lambda: ready(fleet) == 2, "it is not started again", START_S)
    page.get_by_role("button", name="Refresh").click()
    expect(page.get_by_text("2 of 2 workers ready")).to_be_visible()
    console.close()
    assert console.wrong == []
