"""The Chat tab: turns that know of each other, streamed, kept, stopped, made anew, cleared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.e2e.console.browser import Console
from tests.e2e.console.looks import BOTH, Look
from tests.e2e.service import Service

pytestmark = pytest.mark.exhaustive

FIRST = "Which colour does the family wear?"
SECOND = "And which animal does it keep?"
MARKS = re.compile(r" (\[\d\])+")


@pytest.fixture
def console(
    browser: Browser, service: Service, request: pytest.FixtureRequest
) -> Iterator[Console]:
    look: Look = getattr(request, "param", {})
    console = Console(browser, service, **look)
    yield console
    console.close()
    assert console.wrong == []


def kept(page: Page) -> list[dict[str, object]]:
    return list(json.loads(page.evaluate("sessionStorage.getItem('kvstitch.chat') ?? '[]'")))


@pytest.mark.parametrize("console", BOTH, indirect=True)
def test_a_conversation_by_keyboard_alone(console: Console) -> None:
    """Two turns; the second is asked with the first behind it. Then a passage is read."""
    page, keyboard = console.ready("chat"), console.page.keyboard
    first = console.chat(FIRST)
    second = console.chat(SECOND, answers=2)
    done = console.done()
    shown = page.locator(".exchange .markdown").all_text_contents()
    assert [MARKS.sub("", text).strip() for text in shown] == [
        answer["text"].replace("\n", "").strip() for answer in done
    ]
    asked = console.asked[-1]
    assert [(m["role"], m["content"]) for m in asked["messages"]] == [
        ("user", FIRST),
        ("assistant", done[0]["text"]),
        ("user", SECOND),
    ]
    for exchange, answer in ((first, done[0]), (second, done[1])):
        figures = exchange.locator(".figures-line").text_content() or ""
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert figures.startswith("balanced · first token ")
        assert f"{cached} of {answer['usage']['prompt_tokens']} tokens from cache" in figures
        assert exchange.locator(".chip").count() == len(answer["citations"])
    # Backwards from the field: what belongs to the answer, then its passages.
    assert page.evaluate("document.activeElement.id") == "chat-text"
    for _ in range(10):
        keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.className").startswith("chip"):
            break
    chip = second.locator(".chip").last
    assert chip.evaluate("node => node === document.activeElement")
    keyboard.press("Enter")
    passage = second.locator(".passage")
    read = passage.locator("blockquote").text_content() or ""
    assert "".join(read.split()) == "".join(done[1]["citations"][-1]["text"].split())
    assert chip.get_attribute("aria-expanded") == "true"
    keyboard.press("Tab")  # the text, which can be scrolled
    keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Open the document"
    keyboard.press("Enter")
    reader = page.get_by_role("dialog")
    reader.locator("mark").wait_for()
    assert reader.locator("mark").text_content() == done[1]["citations"][-1]["text"]
    keyboard.press("Escape")
    reader.wait_for(state="hidden")
    assert page.evaluate("document.activeElement.textContent") == "Open the document"


def test_the_answer_grows_and_is_said_by_sentences(console: Console) -> None:
    page = console.ready("chat")
    page.evaluate("localStorage.setItem('kvstitch.preferences', '{\"maxTokens\": \"300\"}')")
    page.evaluate(
        """() => {
            // A busy machine paints few frames: every piece is shown when it comes.
            window.requestAnimationFrame = (show) => (show(performance.now()), 0);
            window.seen = [];
            new MutationObserver(() => {
                const text = document.querySelector(".exchange .markdown");
                if (text?.getAttribute("aria-busy") === "true") window.seen.push(text.textContent);
            }).observe(document.getElementById("exchanges"), {
                childList: true, subtree: true, characterData: true,
            });
        }"""
    )
    console.chat(FIRST)
    (done,) = console.done()
    assert done["usage"]["completion_tokens"] == 300
    seen = list(dict.fromkeys(text for text in page.evaluate("window.seen") if text))
    # A browser that has waited for the machine reads many pieces at once.
    assert len(seen) > 1 and seen == sorted(seen, key=len)
    said = page.locator("#chat-live p").all_text_contents()
    squeezed = "".join("".join(said).split())
    assert squeezed == "".join(done["text"].split())  # everything once
    assert page.locator("#chat-live").get_attribute("aria-live") == "polite"
    assert page.locator(".exchange .markdown").get_attribute("aria-live") is None


def test_it_is_kept_in_the_tab_until_it_is_cleared(console: Console, service: Service) -> None:
    page = console.ready("chat")
    console.chat(FIRST)
    text = page.locator(".exchange .markdown").text_content()
    assert page.evaluate("localStorage.length") == 0 and len(kept(page)) == 1
    page.reload()
    assert page.locator(".exchange .markdown").text_content() == text
    page.locator(".exchange .chip").first.click()
    assert page.locator(".passage blockquote").text_content()
    console.wait_until_served()
    page.get_by_role("button", name="Clear").click()
    assert page.locator(".exchange").count() == 0 and kept(page) == []
    assert page.evaluate("document.activeElement.id") == "chat-text"
    page.get_by_text("Ask about your documents").first.wait_for()


# Of the next answer the page reads so many events and no more, however slow it is itself.
HOLD = """(events) => {
    const plain = window.fetch;
    window.fetch = async (address, options) => {
        const response = await plain(address, options);
        if (!response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
        window.fetch = plain;
        const reader = response.body.getReader();
        return new Response(new ReadableStream({
            start(controller) {
                options.signal.addEventListener("abort", () => {
                    controller.error(new DOMException("stopped", "AbortError"));
                });
            },
            async pull(controller) {
                if (events === 0) return new Promise(() => {});
                const { value } = await reader.read();
                let end = 0;
                while (events > 0 && end < value.length) {
                    if (value[end] === 10 && value[end - 1] === 10) events -= 1;
                    end += 1;
                }
                controller.enqueue(value.slice(0, end));
            },
        }), response);
    };
}"""


def test_stopping_and_making_anew(console: Console) -> None:
    """Escape stops; what had come stays, and the answer can be had again."""
    page = console.ready("chat")
    page.evaluate(HOLD, 20)
    page.evaluate("localStorage.setItem('kvstitch.preferences', '{\"maxTokens\": \"700\"}')")
    page.get_by_label("Message").fill(FIRST)
    page.keyboard.press("Enter")
    text = page.locator(".exchange .markdown")
    page.locator(".exchange .markdown > *").first.wait_for()
    page.keyboard.press("Escape")
    exchange = console.exchange(1)
    assert exchange.locator(".state").text_content() == "stopped"
    came = text.text_content()
    assert came and kept(page)[0]["answer"]["state"] == "stopped"  # type: ignore[index]
    page.evaluate("localStorage.clear()")
    page.locator("#chat-method").select_option("method:exact")
    exchange.get_by_role("button", name="Regenerate").click()
    exchange.locator(".figures-line").filter(has_text="exact").wait_for()
    assert console.asked[-1]["fusion"] == {"method": "exact"}
    assert [m["content"] for m in console.asked[-1]["messages"]] == [FIRST]
    assert page.locator(".exchange").count() == 1
    assert exchange.locator(".state").is_hidden()


def test_copying_gives_the_text(console: Console) -> None:
    console.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = console.ready("chat")
    exchange = console.chat(FIRST)
    exchange.get_by_role("button", name="Copy").click()
    exchange.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == console.done()[0]["text"]


def test_a_full_context_leaves_out_the_earliest_turns(console: Console) -> None:
    """The demo model has room for 1,024 tokens: the conversation is cut, and says so."""
    page = console.ready("chat")
    long = "The family keeps a goat. " * 60
    turn = {"state": "done", "text": long, "error": "", "passages": [], "collection": "default"}
    old = [
        {"question": f"Question {n}?", "answer": {**turn, "notes": [], "figures": None}}
        for n in range(3)
    ]
    page.evaluate("old => sessionStorage.setItem('kvstitch.chat', old)", json.dumps(old))
    page.reload()
    page.locator("#chat-method optgroup").first.wait_for(state="attached")
    exchange = console.chat(FIRST, answers=4)
    note = exchange.locator(".warnings li").first.text_content() or ""
    assert "of the conversation" in note and "left out" in note
    sent = console.asked[-1]["messages"]
    assert sent[-1]["content"] == FIRST and len(sent) < 7
    assert console.wrong and all("status of 400" in line for line in console.wrong)
    console.wrong.clear()


def test_an_error_is_said_and_kept_out_of_what_follows(console: Console) -> None:
    page = console.ready("chat")
    page.evaluate("localStorage.setItem('kvstitch.preferences', '{\"topK\": \"100\"}')")
    exchange = console.chat(FIRST)
    state = exchange.locator(".state")
    assert "top_k" in (state.text_content() or "") and state.is_visible()
    assert "top_k" in (page.locator("#chat-live").text_content() or "")
    assert console.wrong and all("status of 422" in line for line in console.wrong)
    console.wrong.clear()
    page.evaluate("localStorage.clear()")
    console.chat(SECOND, answers=2)
    assert [m["content"] for m in console.asked[-1]["messages"]] == [SECOND]


def test_the_collection_is_chosen_here(console: Console, service: Service) -> None:
    service.ingest([{"doc_id": "solo", "text": "Only this is here.", "collection": "lonely"}])
    try:
        page = console.ready("chat")
        page.locator("#chat-collection option[value=lonely]").wait_for(state="attached")
        page.locator("#chat-collection").select_option("lonely")
        exchange = console.chat("What is here?")
        (chip,) = exchange.locator(".chip").all_text_contents()
        assert chip.removesuffix(" ✓ used") == "[1] solo"
    finally:
        service.http.delete("/admin/collections/lonely")


PASSAGE = """## Care

* Dry it in the **shade**.
* Its warranty lasts *two* years.

| part | weight |
|---|---|
| tent | 3.2 kg |"""


def passage(index: int, heading: str | None, **more: Any) -> dict[str, Any]:
    start = 1000 * index
    place = {"char_start": start, "char_end": start + len(PASSAGE), "heading": heading}
    return {"index": index, "doc_id": "guide", "chunk_id": index, "title": "The Corrie 3",
            "text": PASSAGE, "used": False, **place, **more}  # fmt: skip


def test_five_passages_of_one_document_are_told_apart(console: Console) -> None:
    """By heading and page, else by their first words; the used ones are marked, in the text, too,
    and what supports the answer is highlighted in what it was given."""
    quote = "* Its warranty lasts *two* years."
    start = 2000 + PASSAGE.index(quote)
    row = 3000 + PASSAGE.index("| tent")
    passages = [
        passage(1, "The Corrie 3", text="# The Corrie 3\nA tent for three."),
        passage(2, "Before it", used=True, quote_start=start, quote_end=start + len(quote)),
        passage(3, "Care", page="7", used=True, quote_start=row, quote_end=row + 17),
        passage(4, None, text="Its poles are made of aluminium, and bend."),
        passage(5, None, page="Sheet1"),
    ]
    said = "The warranty lasts two years. It weighs 3.2 kg!"
    sentences = [
        {"start": 0, "end": 29, "citations": [2], "score": 1, "by": "words"},
        {"start": 30, "end": 47, "citations": [3, 2], "score": 1, "by": "words"},
    ]
    answer: dict[str, Any] = {
        "state": "done",
        "text": said,
        "error": "",
        "passages": passages,
        "notes": [],
    }
    answer |= {"attributions": sentences, "collection": "default", "figures": None}
    page = console.ready("chat")
    kept = json.dumps([{"question": "How long?", "answer": answer}])
    page.evaluate("kept => sessionStorage.setItem('kvstitch.chat', kept)", kept)
    page.reload()
    exchange = console.exchange(1)
    assert exchange.locator(".chip").all_text_contents() == [
        "[1] The Corrie 3 › “A tent for three. …”",
        "[2] The Corrie 3 › Care ✓ used",
        "[3] The Corrie 3 › Care, page 7 ✓ used",
        "[4] The Corrie 3 › “Its poles are made of …”",
        "[5] The Corrie 3 › Sheet1",
    ]
    assert exchange.locator(".chip .offscreen").all_text_contents().count(" The Corrie 3") == 4
    expect(exchange.locator(".chip.used")).to_have_count(2)
    told = exchange.locator(".markdown").text_content()
    assert told == "The warranty lasts two years [2]. It weighs 3.2 kg [3][2]!"
    exchange.locator(".cite").first.click()
    read = exchange.locator(".passage blockquote")
    assert read.locator("h4, strong, em").all_text_contents() == ["Care", "shade", "two"]
    assert "".join(read.locator("mark").all_text_contents()) == "Its warranty lasts two years."
    exchange.locator(".chip").nth(2).click()
    assert read.locator("td mark").all_text_contents() == ["tent", "3.2 kg"]
    exchange.locator(".chip").nth(0).click()
    expect(read.locator("mark")).to_have_count(0)


def test_a_waiting_answer_says_what_it_waits_for(console: Console) -> None:
    """Of the stream comes one event, the passages; the service is made to say what it would say if
    documents were still being precomputed."""
    page = console.ready("chat")
    page.evaluate(HOLD, 1)

    def forecast(route: Route) -> None:
        if not (route.request.post_data_json or {}).get("explain"):
            route.fallback()
            return
        told = route.fetch().json()
        told["documents"][0]["tier"] = "cold"
        route.fulfill(json=told)

    def jobs(route: Route) -> None:
        told = route.fetch().json()
        for job in told["jobs"]:
            total = job["progress"]["done"] + 41
            job |= {"state": "running", "progress": job["progress"] | {"total": total}}
        route.fulfill(json={**told, "jobs": told["jobs"][:1]})

    page.route("**/v1/rag/generate", forecast)
    page.route("**/admin/jobs*", jobs)
    page.get_by_label("Message").fill(FIRST)
    page.keyboard.press("Enter")
    expect(page.locator(".exchange .state")).to_have_text(
        "41 documents are still being precomputed: this answer reads 1 of its 3 passages the slow "
        "way"
    )
    page.keyboard.press("Escape")
    console.exchange(1)
