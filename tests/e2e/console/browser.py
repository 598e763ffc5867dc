"""The console as its users meet it: Debian's Chromium, driven by Playwright. Whatever a page writes
to its console as an error, refuses by its policy or throws is kept, and a test fails by it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    expect,
    sync_playwright,
)

from kvstitch.client import server_sent_events as events
from tests.e2e.service import HANG_S, Service

ASKED = "/v1/rag/generate"
# What Chromium gives up when some container of the machine begins or ends while it loads a page.
_NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
expect.set_options(timeout=1000 * HANG_S)  # not five seconds

# Chromium keeps no body of a response that was read as a stream: the page keeps a copy.
KEEP_STREAMS = """
    window.streams = [];
    const plain = window.fetch;
    window.fetch = async (...asked) => {
        const response = await plain(...asked);
        if (!response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
        const [shown, kept] = response.body.tee();
        const number = window.streams.push("") - 1;
        kept.pipeThrough(new TextDecoderStream()).pipeTo(new WritableStream({
            write(text) { window.streams[number] += text; },
        })).catch(() => {});  // stopped
        return new Response(shown, response);
    };
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    binary = shutil.which("chromium-headless-shell")
    if binary is None:
        raise RuntimeError("Chromium is not installed: scripts/install-chromium.sh")
    with sync_playwright() as playwright:
        # In a container there is no second sandbox to be had.
        browser = playwright.chromium.launch(
            executable_path=binary, args=["--no-sandbox"], timeout=2000 * HANG_S
        )
        yield browser
        browser.close()


class Console:
    """One page at /ui, in a session of its own."""

    def __init__(
        self, browser: Browser, service: Service, *, width: int = 1280, **looks: Any
    ) -> None:
        """`looks` are those of Playwright's contexts, e.g. color_scheme="dark"."""
        self.service = service
        self.context = browser.new_context(viewport={"width": width, "height": 860}, **looks)
        self.context.set_default_timeout(1000 * HANG_S)
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.asked: list[Any] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self._asked)
        self.page.add_init_script(KEEP_STREAMS)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(message.text)

    def _asked(self, request: Request) -> None:
        if request.url.endswith(ASKED):
            self.asked.append(request.post_data_json)

    # Nothing here may wait for an expression: that is an `eval`, which the policy refuses.

    def open(self, tab: str = "ask") -> Page:
        for _ in range(10):
            self.page.goto(f"http://127.0.0.1:{self.service.port}/ui/#/{tab}")
            if not any(_NETWORK_CHANGED in line for line in self.wrong):
                break
            self.wrong.clear()
            self.page.goto("about:blank")  # else it would be the same page
        return self.page

    def ready(self, tab: str = "ask") -> Page:
        """Opened, and what the service says of itself has come."""
        page = self.open(tab)
        self.wait_until_served()
        page.locator("[name=fusion] option").first.wait_for(state="attached")
        page.locator("#chat-method optgroup").first.wait_for(state="attached")
        return page

    def wait_until_served(self) -> None:
        self.page.locator("#service").get_by_text("serving ").wait_for()

    @property
    def panel(self) -> Locator:
        """The panel of the tab that is chosen."""
        return self.page.get_by_role("tabpanel")

    def choose_tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).click()

    def ask(self, question: str, **choices: str) -> None:
        """Ask with these choices of the first method's fields, and wait for the end."""
        self.page.locator("#question").fill(question)
        for label, value in choices.items():
            self.choose(self.page.get_by_role("group", name="Method").first, label, value)
        self.page.get_by_role("button", name="Ask", exact=True).click()
        self.wait_for_answers()

    def choose(self, within: Locator, label: str, value: str) -> None:
        name = label.capitalize()
        if label in ("method", "eviction"):
            within.get_by_role("combobox", name=name).select_option(value)
        else:
            within.get_by_role("spinbutton", name=name).fill(value)

    def wait_for_answers(self) -> None:
        self.page.locator("#send:enabled").wait_for()

    def open_tokens(self) -> None:
        """Unfold the prompt of every answer on the Ask tab."""
        for summary in self.page.locator(".prompt > summary").all():
            summary.click()

    def chat(self, question: str, answers: int = 1) -> Locator:
        """Ask in the Chat tab by keyboard alone; the exchange when its answer has ended."""
        self.page.get_by_label("Message").focus()
        self.page.keyboard.type(question)
        self.page.keyboard.press("Enter")
        return self.exchange(answers)

    def exchange(self, number: int) -> Locator:
        found = self.page.locator(".exchange").nth(number - 1)
        found.get_by_role("button", name="Regenerate").wait_for()
        return found

    def done(self) -> list[dict[str, Any]]:
        """The `done` events that the page was sent, in order."""
        streams: list[str] = self.page.evaluate("window.streams")
        told = [dict(events(iter(stream.split("\n")))) for stream in streams]
        return [of["done"] for of in told if "done" in of]

    def close(self) -> None:
        self.context.close()


def tallies(result: Locator) -> dict[str, dict[str, int]]:
    """The table of counts: per segment, in order of the prompt, its numbers by name."""
    rows = result.locator("table.tallies").locator("tbody tr, tfoot tr")
    script = """rows => rows.map((row) => [
        row.querySelector("th").textContent,
        Object.fromEntries([...row.querySelectorAll("[data-count]")].map((cell) => [
            cell.dataset.count, Number(cell.textContent.replaceAll(",", "")),
        ])),
    ])"""
    return dict(json.loads(json.dumps(rows.evaluate_all(script))))
