"""Keys and settings: a missing key and a wrong one told apart, and where each thing is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.conftest import Documents
from tests.e2e.console.browser import Console
from tests.e2e.console.looks import BOTH, Look
from tests.e2e.service import Service
from tests.e2e.test_tenants import acting, make_key

pytestmark = pytest.mark.exhaustive

MISSING = "This service asks for an API key."
WRONG = "The service refuses this API key: it was mistyped, revoked, or has expired."
PREFERENCES = "JSON.parse(localStorage.getItem('kvstitch.preferences') ?? '{}')"
KEPT = "[{...sessionStorage}, {...localStorage}, document.cookie]"


@pytest.fixture(scope="module")
def keyed(
    tmp_path_factory: pytest.TempPathFactory, model: Path, twelve: Documents
) -> Iterator[tuple[Service, str]]:
    """A service that asks for keys, and a key."""
    data = tmp_path_factory.mktemp("keyed") / "data"
    key = make_key(data, "red")
    with Service(model, data, allow_anonymous=False) as service:
        acting(service, key)
        service.ingest(twelve)
        yield service, key


@pytest.fixture
def console(
    browser: Browser, keyed: tuple[Service, str], request: pytest.FixtureRequest
) -> Iterator[Console]:
    look: Look = getattr(request, "param", {})
    console = Console(browser, keyed[0], **look)
    yield console
    console.close()
    assert console.wrong == []


def expected_401(console: Console) -> None:
    """The browser notes a refusal by itself; nothing else may be noted."""
    assert console.wrong and all("status of 401" in line for line in console.wrong), console.wrong
    console.wrong.clear()


@pytest.mark.parametrize("console", BOTH, indirect=True)
def test_a_missing_key_and_a_wrong_one(console: Console, keyed: tuple[Service, str]) -> None:
    """By keyboard alone: the page leads to the field, wherever one wanted to go."""
    page, keyboard = console.open("documents"), console.page.keyboard
    state = page.locator("#key-state")
    expect(state).to_have_text(MISSING)
    assert page.evaluate("document.activeElement.id") == "key"
    assert page.get_by_label("API key", exact=True).get_attribute("aria-invalid") == "true"
    keyboard.type("kvs_0000_wrong")
    keyboard.press("Enter")
    expect(state).to_have_text(WRONG)
    assert page.evaluate("document.activeElement.id") == "key"
    page.get_by_label("API key", exact=True).fill("")
    keyboard.type(keyed[1])
    keyboard.press("Enter")
    console.wait_until_served()
    expected_401(console)
    assert page.get_by_label("API key", exact=True).get_attribute("aria-invalid") == "false"
    assert page.evaluate(KEPT) == [{"kvstitch.key": keyed[1]}, {}, ""]
    console.choose_tab("Documents")
    page.locator("#documents tr").first.wait_for()
    page.reload()
    console.wait_until_served()
    console.choose_tab("Chat")
    console.chat("Which colour is it?")
    assert len(console.done()) == 1


def test_forgetting_and_remembering(console: Console, keyed: tuple[Service, str]) -> None:
    """What one key was told is not shown to the next."""
    page = console.open("settings")
    expect(page.locator("#key-state")).to_have_text(MISSING)
    page.get_by_label("Remember it in this browser").check()
    page.get_by_label("API key", exact=True).fill(keyed[1])
    page.get_by_role("button", name="Use").click()
    console.wait_until_served()
    expected_401(console)
    assert page.evaluate(KEPT) == [{}, {"kvstitch.key": keyed[1]}, ""]
    console.choose_tab("Chat")
    console.chat("Which colour is it?")
    console.choose_tab("Settings")
    page.get_by_role("button", name="Forget").click()
    expect(page.locator("#key-state")).to_have_text(MISSING)
    assert page.evaluate(KEPT) == [{}, {}, ""]
    assert page.locator(".exchange").count() == 0
    expected_401(console)


def test_a_revoked_key_leads_back_here(console: Console, keyed: tuple[Service, str]) -> None:
    page = console.open("settings")
    page.evaluate("sessionStorage.setItem('kvstitch.key', 'kvs_0000_revoked')")
    page.goto(f"http://127.0.0.1:{keyed[0].port}/ui/#/chat")
    page.reload()
    expect(page.locator("#key-state")).to_have_text(WRONG)
    assert page.get_by_role("tab", name="Settings").get_attribute("aria-selected") == "true"
    expected_401(console)


def with_key(console: Console, key: str, tab: str) -> Any:
    console.context.add_init_script(f"sessionStorage.setItem('kvstitch.key', '{key}')")
    page = console.open(tab)
    console.wait_until_served()
    return page


def test_a_key_without_a_scope(console: Console, keyed: tuple[Service, str]) -> None:
    """It may ask; the other tabs name what it lacks."""
    key = make_key(keyed[0].data_dir, "red", "--scope", "generate")
    page = with_key(console, key, "chat")
    console.chat("Which colour is it?")
    for tab, scope in (("Documents", "admin"), ("Jobs", "ingest"), ("Tiers", "metrics")):
        console.choose_tab(tab)
        console.panel.get_by_text(f"lacks the scope '{scope}'").first.wait_for()
    assert page.locator("body.no-documents").count() == 0  # it is not known whether there are any
    assert console.wrong and all("status of 403" in line for line in console.wrong)
    console.wrong.clear()


def test_defaults_and_theme_are_kept(console: Console, keyed: tuple[Service, str]) -> None:
    page = with_key(console, keyed[1], "settings")
    told = keyed[0].http.get("/v1/methods").json()["defaults"]
    page.locator("#service-defaults dd").first.wait_for()
    shown = page.locator("#service-defaults").text_content() or ""
    assert told["fusion"]["method"] in shown and f"from: {told['from']['fusion']}" in shown
    page.locator("#set-method").select_option("method:fastest")
    console.panel.get_by_label("Passages").fill("2")
    console.panel.get_by_label("Answer tokens").fill("7")
    page.keyboard.press("Tab")
    page.get_by_label("dark").check()
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    assert page.evaluate(PREFERENCES) == {
        **{"method": "method:fastest", "topK": "2", "maxTokens": "7", "theme": "dark"},
    }
    page.get_by_label("light").check()
    assert page.evaluate(ground) != dark
    page.get_by_label("dark").check()
    earlier = {"method": "profile:fast", "topK": "2", "maxTokens": "7", "theme": "dark"}
    page.evaluate("kept => localStorage.setItem('kvstitch.preferences', kept)", json.dumps(earlier))
    page.reload()
    assert page.evaluate(ground) == dark and page.get_by_label("dark").is_checked()
    console.wait_until_served()
    console.choose_tab("Chat")
    expect(page.locator("#chat-method")).to_have_value("method:fastest")
    console.chat("Which colour is it?")
    asked = console.asked[-1]
    chosen = asked["fusion"], asked["top_k"], asked["max_tokens"]
    assert chosen == ({"method": "fastest"}, 2, 7)
