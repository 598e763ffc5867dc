"""The Documents tab: files in by choosing and dropping, found, read, pinned, deleted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, FileChooser, Page, TimeoutError, expect

from tests.e2e.conftest import Documents
from tests.e2e.console.browser import Console
from tests.e2e.console.looks import BOTH, Look
from tests.e2e.service import Service

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def stocked(
    tmp_path_factory: pytest.TempPathFactory, model: Path, corpus: Documents
) -> Iterator[Service]:
    """A service of this module's own, which may change: three pages of documents."""
    with Service(model, tmp_path_factory.mktemp("documents") / "data") as service:
        for year, document in enumerate(corpus):
            document = {**document, "metadata": {"kind": document["doc_id"][:4], "year": year}}
            corpus[year] = document
        service.ingest(corpus)
        yield service


def chooser(page: Page) -> FileChooser:
    """Opens the file chooser by keyboard. Playwright begins to catch choosers while the key is on
    its way, and one that opens before that is closed by the browser: then the key is pressed again.
    """
    for _ in range(12):
        try:
            with page.expect_file_chooser(timeout=5000) as choosing:
                page.get_by_role("button", name="Choose files").press("Enter")
            return choosing.value
        except TimeoutError:
            continue
    raise AssertionError("no file chooser opens")


@pytest.fixture
def console(
    browser: Browser, stocked: Service, request: pytest.FixtureRequest
) -> Iterator[Console]:
    look: Look = getattr(request, "param", {})
    console = Console(browser, stocked, **look)
    console.ready("documents")
    yield console
    console.close()
    assert console.wrong == []


def status(page: Page, text: str) -> None:
    page.locator("#documents-status").get_by_text(text, exact=True).wait_for()


def names(page: Page) -> list[str]:
    return page.locator("#documents th .code").all_text_contents()


def test_pages_of_documents(console: Console, stocked: Service, corpus: Documents) -> None:
    page = console.page
    everything = sorted(document["doc_id"] for document in corpus)
    seen: list[str] = []
    for first in range(0, len(everything), 25):
        last = min(first + 25, len(everything))
        status(page, f"documents {first + 1} to {last} of {len(everything)}")
        seen += names(page)
        if last < len(everything):
            page.get_by_role("button", name="Next").click()
    assert seen == everything
    assert page.get_by_role("button", name="Next").is_disabled()
    page.get_by_role("button", name="Previous").click()
    status(page, f"documents 26 to 50 of {len(everything)}")
    assert names(page) == everything[25:50]


def test_found_by_title_id_and_metadata(
    console: Console, stocked: Service, corpus: Documents
) -> None:
    page = console.page
    some = corpus[40]
    page.get_by_role("searchbox").fill(some["title"].upper()[1:-1])
    status(page, "1 document found")
    assert names(page) == [some["doc_id"]]
    page.get_by_role("searchbox").fill("PERSON-0")
    wanted = [d["doc_id"] for d in corpus if "person-0" in d["doc_id"]]
    status(page, f"{len(wanted)} documents found")
    assert names(page) == sorted(wanted)
    page.get_by_role("searchbox").fill("")
    page.get_by_label("Metadata").fill("kind=firm year>=3")
    page.keyboard.press("Enter")
    wanted = [d["doc_id"] for n, d in enumerate(corpus) if d["doc_id"][:4] == "firm" and n >= 3]
    status(page, f"{len(wanted)} documents found")
    assert names(page) == sorted(wanted)
    page.get_by_label("Metadata").fill('{"or": [{"year": 1}, {"year": {"in": [2, 7]}}]}')
    page.keyboard.press("Enter")
    status(page, "3 documents found")
    page.get_by_label("Metadata").fill("what?")
    page.keyboard.press("Enter")
    page.get_by_text("write name=value instead of “what?”").wait_for()
    page.get_by_label("Metadata").fill("kind=nobody")
    page.keyboard.press("Enter")
    status(page, "no document matches")


def test_reading_one(console: Console, corpus: Documents) -> None:
    page, document = console.page, corpus[0]
    page.get_by_role("button", name=document["title"], exact=True).click()
    reader = page.get_by_role("dialog", name=document["title"])
    assert reader.locator(".document-text").text_content() == document["text"]
    facts = reader.locator("dl").text_content() or ""
    assert document["doc_id"] in facts and "kind" in facts
    reader.get_by_role("button", name="Close").click()
    reader.wait_for(state="hidden")


def test_pinning(console: Console, stocked: Service, corpus: Documents) -> None:
    page, doc_id = console.page, corpus[1]["doc_id"]
    pin = page.get_by_role("button", name=f"Pin {doc_id}")
    for pinned in (True, False):
        pin.click()
        expect(pin).to_have_attribute("aria-pressed", str(pinned).lower())
        assert stocked.http.get(f"/admin/documents/{doc_id}").json()["pinned"] is pinned


@pytest.mark.parametrize("console", BOTH, indirect=True)
def test_files_through_the_chooser(console: Console, stocked: Service, tmp_path: Path) -> None:
    """By keyboard alone: files of four kinds, one of them broken, and what becomes of each."""
    page, keyboard = console.page, console.page.keyboard
    (tmp_path / "notes.md").write_text("# My notes\n\nThe goat is **green**.")
    (tmp_path / "page.html").write_text("<title>A page</title><p>The eagle is blue.</p>")
    (tmp_path / "rows.jsonl").write_text(
        '{"doc_id": "row-1", "text": "One."}\n{"doc_id": "row-2", "text": "Two."}\n'
    )
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 and then nothing")
    page.get_by_label("into collection").focus()
    keyboard.type("files")
    chooser(page).set_files(sorted(tmp_path.iterdir()))

    def row(name: str, text: str | re.Pattern[str]) -> None:
        found = page.locator(".upload").filter(has_text=name)
        expect(found.get_by_role("status")).to_have_text(text)

    row("notes.md", "ready, 1 chunk")
    row("page.html", "ready, 1 chunk")
    row("rows.jsonl", "ready, 2 chunks")
    row("broken.pdf", re.compile("PDF|pdf|read"))
    page.get_by_role("button", name="Send broken.pdf again").wait_for()
    # The list has gone to where they are.
    expect(page.locator("#documents-collection")).to_have_value("files")
    status(page, "4 documents")
    assert names(page) == ["notes.md", "page.html", "row-1", "row-2"]
    stored = stocked.http.get("/admin/documents/notes.md?collection=files").json()
    assert stored["text"] == (tmp_path / "notes.md").read_text()
    chooser(page).set_files(tmp_path / "notes.md")
    expect(page.locator(".upload").last.get_by_role("status")).to_have_text(
        "was there already, unchanged"
    )
    page.get_by_role("button", name="Clear finished").press("Enter")
    assert page.locator(".upload").count() == 0
    stocked.http.delete("/admin/collections/files")


def test_files_that_are_dropped(console: Console, stocked: Service) -> None:
    page = console.page
    page.get_by_label("into collection").fill("dropped")
    transfer = page.evaluate_handle(
        """() => {
            const transfer = new DataTransfer();
            for (const name of ["one.txt", "two.txt", "three.txt"]) {
                transfer.items.add(new File([`This is ${name}.`], name, { type: "text/plain" }));
            }
            return transfer;
        }"""
    )
    page.dispatch_event("#drop", "dragover", {"dataTransfer": transfer})
    expect(page.locator("#drop")).to_have_class(re.compile("over"))
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})
    expect(page.locator('.upload[data-state="done"]')).to_have_count(3)
    expect(page.locator("#drop")).not_to_have_class(re.compile("over"))
    status(page, "3 documents")
    assert names(page) == ["one.txt", "three.txt", "two.txt"]
    stocked.http.delete("/admin/collections/dropped")


@pytest.mark.slow
def test_progress_while_it_is_sent_and_while_it_is_read(console: Console, stocked: Service) -> None:
    """A long file: shares that grow while it is sent, then the job with what it has left."""
    page = console.page
    page.evaluate(
        """() => {
            window.said = [];
            new MutationObserver(() => {
                const said = document.querySelector(".upload [role=status]")?.textContent;
                if (said && window.said.at(-1) !== said) window.said.push(said);
            }).observe(document.getElementById("uploads"), {
                childList: true, subtree: true, characterData: true,
            });
        }"""
    )
    line = '{"doc_id": "long-%d", "collection": "long", "text": "%s"}\n'
    rows = "".join(
        line % (n, f"Sentence {n}. The goat of number {n} is green. " * 60) for n in range(30)
    )
    session = console.context.new_cdp_session(page)
    slow = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 15_000}
    session.send("Network.enable")
    session.send("Network.emulateNetworkConditions", slow)
    page.locator("#files").set_input_files(
        {"name": "long.jsonl", "mimeType": "application/x-ndjson", "buffer": rows.encode()}
    )
    page.locator(".upload").get_by_text(re.compile("sent|being read")).wait_for()
    session.send("Network.emulateNetworkConditions", {**slow, "uploadThroughput": -1})
    expect(page.locator(".upload [role=status]")).to_have_text(re.compile("ready"))
    said = page.evaluate("window.said")
    shares = [int(text.split()[1]) for text in said if text.startswith("sending")]
    assert len(set(shares)) > 2 and shares == sorted(shares), said
    assert any(re.fullmatch(r"being read: \d+ of 30 documents, .* left", text) for text in said), (
        said
    )
    stocked.http.delete("/admin/collections/long")


@pytest.mark.parametrize("console", BOTH, indirect=True)
def test_a_document_is_deleted_only_when_that_is_meant(console: Console, stocked: Service) -> None:
    """By keyboard alone; the receipt stays until it is dismissed."""
    page, keyboard = console.page, console.page.keyboard
    for doc_id in ("a/b c?", "another"):
        stocked.ingest([{"doc_id": doc_id, "text": f"{doc_id} goes.", "collection": "doomed"}])
    page.get_by_role("button", name="Refresh").press("Enter")
    page.locator("#documents-collection option[value=doomed]").wait_for(state="attached")
    page.locator("#documents-collection").select_option("doomed")
    status(page, "2 documents")
    page.get_by_role("button", name="Delete a/b c?").focus()
    keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    assert "a/b c?" in (dialog.text_content() or "")
    keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    path = f"/admin/documents/a/b%20c%3F?{urlencode({'collection': 'doomed'})}"
    assert stocked.http.get(path).status_code == 200
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Delete a/b c?"
    keyboard.press("Enter")
    keyboard.press("Tab")
    keyboard.press("Enter")
    receipt = page.get_by_role("region", name="Receipt of the deletion")
    receipt.wait_for()
    assert stocked.http.get(path).status_code == 404
    number = receipt.locator("dd").first.text_content()
    told = stocked.http.get(f"/admin/receipts/{number}").json()
    assert told["doc_ids"] == ["a/b c?"] and told["state"] == "completed"
    words = receipt.text_content() or ""
    assert "a/b c? is deleted" in words and f"RAM {told['kv']['memory']}" in words
    status(page, "1 document")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Delete another"
    receipt.get_by_role("button", name="Dismiss").press("Enter")
    assert receipt.count() == 0
    page.get_by_role("button", name="Delete the collection").press("Enter")
    dialog.get_by_role("button", name="Delete").press("Enter")
    page.get_by_text("The collection doomed is deleted").wait_for()
    collections = stocked.http.get("/admin/collections").json()["collections"]
    assert "doomed" not in [of["collection"] for of in collections]


def test_a_question_that_is_asked_again_at_once_is_heard(
    console: Console, stocked: Service
) -> None:
    """A dialog tells only later that it was closed; the next question must not take that for its
    answer, or what is then confirmed would be ignored."""
    page = console.page
    stocked.ingest([{"doc_id": "twice", "text": "Asked twice.", "collection": "twice"}])
    page.get_by_role("button", name="Refresh").press("Enter")
    page.locator("#documents-collection option[value=twice]").wait_for(state="attached")
    page.locator("#documents-collection").select_option("twice")
    status(page, "1 document")
    page.get_by_role("button", name="Delete twice").evaluate(
        """(remove) => {
            remove.click();
            document.querySelector("dialog[open]").close();
            remove.click();
        }"""
    )
    page.get_by_role("dialog").get_by_role("button", name="Delete").press("Enter")
    page.get_by_role("region", name="Receipt of the deletion").wait_for()
