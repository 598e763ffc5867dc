"""People sign in at a real OpenID provider, in a real browser, and see what their groups may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect

from tests.e2e.console.browser import Console
from tests.e2e.console.openid_provider import OpenIdProvider, openid_provider
from tests.e2e.service import HANG_S, Service
from tests.e2e.test_tenants import make_key

pytestmark = pytest.mark.exhaustive

DOCUMENTS: list[dict[str, Any]] = [
    {"doc_id": "canteen", "text": "The canteen opens at noon and serves soup."},
    {"doc_id": "salaries", "text": "The salary of the gardener is secret.", "readers": ["hr"]},
    {"doc_id": "minutes", "text": "The board wants to sell the mill.", "readers": ["board"]},
]
HANG_MS = 1000 * HANG_S
KEPT = "[Object.keys(sessionStorage).sort(), {...localStorage}, document.cookie]"
SESSION = "JSON.parse(sessionStorage.getItem('kvstitch.session'))"


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, model: Path
) -> Iterator[tuple[Service, OpenIdProvider]]:
    """A service whose console signs in there as a confidential client."""
    data = tmp_path_factory.mktemp("signed-in") / "data"
    key = make_key(data, "red")
    service = Service(model, data)
    with openid_provider(f"http://127.0.0.1:{service.port}/ui/") as provider:
        service.configure(
            oidc_issuer=provider.issuer,
            oidc_audience="kvstitch",
            oidc_tenant="red",
            oidc_refetch_s=0.01,
            oidc_clock_skew_s=0,
            oidc_client_id="confidential",
            oidc_client_secret="s3cret&:/ of+tests",
            oidc_client_scopes="openid profile generate ingest admin metrics",
            oidc_client_parameters="resource=urn:kvstitch",
        )
        service.http.headers["Authorization"] = f"Bearer {key}"
        with service:
            service.ingest(DOCUMENTS)
            yield service, provider


class SignInConsole(Console):
    """What the provider's pages note is theirs; they would load a font from another host."""

    def __init__(self, browser: Browser, service: Service) -> None:
        super().__init__(browser, service)
        self.context.route(lambda url: "//127.0.0.1:" not in url, _refuse)

    def _said(self, message: ConsoleMessage) -> None:
        if f":{self.service.port}/" in message.location["url"]:
            super()._said(message)

    def begin(self) -> Page:
        """Wherever one wanted to go, the page leads to the button."""
        self.page.goto("about:blank")  # else it would be the same page
        page = self.open("documents")
        expect(page.locator("#key-state")).to_have_text(
            "Sign in, or give an API key.", timeout=HANG_MS
        )
        expect(page.locator("#sign-in-begin")).to_be_focused(timeout=HANG_MS)
        page.keyboard.press("Enter")
        return page

    def documents(self) -> list[str]:
        self.wait_until_served()
        self.choose_tab("Documents")
        self.page.locator("#documents tr").first.wait_for()
        titles = self.page.locator("#documents tr").all_inner_texts()
        return sorted(d["doc_id"] for d in DOCUMENTS if any(d["doc_id"] in row for row in titles))


def _refuse(route: Route) -> None:
    route.abort()


@pytest.fixture
def console(browser: Browser, served: tuple[Service, OpenIdProvider]) -> Iterator[SignInConsole]:
    console = SignInConsole(browser, served[0])
    yield console
    console.close()
    served[1].set(audience="kvstitch", ttl=600)
    # The browser notes refusals by itself; nothing else may be noted.
    assert [line for line in console.wrong if "status of 401" not in line] == []


@pytest.fixture
def provider(served: tuple[Service, OpenIdProvider]) -> OpenIdProvider:
    return served[1]


def test_each_sees_what_their_groups_may_read(
    console: SignInConsole, provider: OpenIdProvider
) -> None:
    """Anna of hr, then Ben of the board in the same tab, to whom nothing of Anna's is shown."""
    page = console.begin()
    provider.sign_in(page, "anna")
    assert console.documents() == ["canteen", "salaries"]
    assert page.url == f"http://127.0.0.1:{console.service.port}/ui/#/documents"
    kept: Any = page.evaluate(KEPT)
    assert kept == [["kvstitch.session"], {}, ""], "no verifier, no state, no cookie"
    console.choose_tab("Chat")
    console.chat("What is the salary of the gardener?")
    assert "salaries" in str(console.done()) and "minutes" not in str(console.done())
    console.choose_tab("Settings")
    expect(page.locator("#sign-in-state")).to_contain_text(
        "Signed in as Anna Example until ", timeout=HANG_MS
    )
    page.get_by_role("button", name="Sign out").click()
    provider.sign_out(page)
    expect(page.locator("#sign-in-state")).to_have_text("Nobody is signed in.", timeout=HANG_MS)
    assert page.evaluate(KEPT) == [[], {}, ""]

    page = console.begin()
    provider.sign_in(page, "ben")
    assert console.documents() == ["canteen", "minutes"]
    console.choose_tab("Chat")
    assert page.locator(".exchange").count() == 0
    console.chat("What does the board want to sell?")
    assert "minutes" in str(console.done()) and "salaries" not in str(console.done())


@pytest.mark.parametrize("consent", [False, True])
def test_a_login_that_is_called_off(
    console: SignInConsole, provider: OpenIdProvider, consent: bool
) -> None:
    page = console.begin()
    if consent:
        page.get_by_placeholder("Enter any login").fill("anna")
        page.get_by_placeholder("and password").fill("any")
        page.get_by_role("button", name="Sign-in").click()
        page.get_by_role("button", name="Continue").wait_for()
    provider.cancel(page)
    expect(page.locator("#sign-in-state")).to_contain_text(
        "refused: access_denied", timeout=HANG_MS
    )
    expect(page.locator("#sign-in-begin")).to_be_focused(timeout=HANG_MS)
    assert page.evaluate(KEPT) == [[], {}, ""]
    assert "error=" not in page.url


@pytest.mark.slow
def test_a_token_for_another_service(console: SignInConsole, provider: OpenIdProvider) -> None:
    provider.set(audience="shop")
    page = console.begin()
    provider.sign_in(page, "anna")
    expect(page.locator("#sign-in-state")).to_contain_text(
        "issued for another service", timeout=HANG_MS
    )
    assert page.evaluate(KEPT) == [[], {}, ""]


@pytest.mark.slow
def test_an_end_and_a_new_beginning(console: SignInConsole, provider: OpenIdProvider) -> None:
    """A sign-in ends with its token. The next one takes a click, and the conversation goes on."""
    provider.set(ttl=25)  # time to sign in on a busy machine, too
    page = console.begin()
    provider.sign_in(page, "anna")
    expect(page.locator("#sign-in-state")).to_contain_text(
        "Signed in as Anna Example", timeout=HANG_MS
    )
    page.evaluate("sessionStorage.setItem('kvstitch.chat-was-here', 'yes')")
    first = page.evaluate(SESSION)
    state = page.locator("#sign-in-state")

    def ended() -> bool:
        console.choose_tab("Tiers")
        console.choose_tab("Jobs")  # asks the service, and leads to Settings if it refuses
        return state.text_content() == "Your sign-in has ended."

    console.service.until(ended, "the token does not expire")
    expect(page.locator("#key-state")).to_have_text(
        "the token has expired: sign in again", timeout=HANG_MS
    )
    provider.set(ttl=600)
    console.choose_tab("Settings")
    page.get_by_role("button", name="Sign in again").click()
    page.get_by_role("button", name="Continue").click()  # no password is asked for
    expect(state).to_contain_text("Signed in as Anna Example", timeout=HANG_MS)
    console.wait_until_served()
    now = page.evaluate(SESSION)
    assert now["subject"] == first["subject"] and now["expires"] > first["expires"]
    assert page.evaluate("sessionStorage.getItem('kvstitch.chat-was-here')") == "yes"


@pytest.mark.slow
def test_other_keys_at_the_provider(console: SignInConsole, provider: OpenIdProvider) -> None:
    """Tokens of a key that the service has not seen are taken without a restart."""
    page = console.begin()
    provider.sign_in(page, "anna")
    assert console.documents() == ["canteen", "salaries"]
    provider.set(keys="new")
    console.context.clear_cookies()
    page.evaluate("sessionStorage.clear()")
    page = console.begin()
    provider.sign_in(page, "olga")
    assert console.documents() == ["canteen"]


@pytest.mark.parametrize("began", [False, True])
def test_an_answer_that_was_not_asked_for(console: SignInConsole, began: bool) -> None:
    """A link of somebody else's, with a code of theirs, signs nobody in; the code goes nowhere."""
    sent: list[str] = []
    page = console.page
    page.on("request", lambda request: sent.append(f"{request.method} {request.url}"))
    if began:
        page = console.begin()
        page.get_by_placeholder("Enter any login").wait_for()
    page.goto(f"http://127.0.0.1:{console.service.port}/ui/?code=abc&state=of-somebody-else")
    expect(page.locator("#sign-in-state")).to_contain_text(
        "was not begun in this tab", timeout=HANG_MS
    )
    assert page.evaluate(KEPT) == [[], {}, ""] and "code=" not in page.url
    assert [line for line in sent if line.startswith("POST")] == []
