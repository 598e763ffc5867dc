"""The console's other tabs, on a service with keys: documents, jobs, tiers as the API has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser

from tests.e2e.conftest import Documents
from tests.e2e.console.browser import Console
from tests.e2e.service import Service
from tests.e2e.test_tenants import acting, make_key


@pytest.fixture(scope="module")
def keyed(
    tmp_path_factory: pytest.TempPathFactory, model: Path, twelve: Documents
) -> Iterator[tuple[Service, str]]:
    """A service that asks for keys, with two collections, and a key."""
    data = tmp_path_factory.mktemp("keyed") / "data"
    key = make_key(data, "red")
    with Service(model, data, allow_anonymous=False) as service:
        acting(service, key)
        service.ingest(twelve)
        service.ingest([{**d, "collection": "second"} for d in twelve[:3]])
        yield service, key


@pytest.fixture
def console(browser: Browser, keyed: tuple[Service, str]) -> Iterator[Console]:
    """With the key given, as a person gives it."""
    service, key = keyed
    console = Console(browser, service)
    page = console.open()
    page.get_by_text("This service asks for an API key.").wait_for()
    assert page.evaluate("document.activeElement.id") == "key"
    page.keyboard.type(key)
    page.keyboard.press("Enter")
    page.get_by_text("serving ").wait_for()
    # Until then the service refused, and the browser notes that by itself.
    assert all("status of 401" in line for line in console.wrong), console.wrong
    console.wrong.clear()
    yield console
    console.close()
    assert console.wrong == []


def test_the_key_is_kept_for_the_session_only(console: Console, keyed: tuple[Service, str]) -> None:
    page = console.page
    kept = page.evaluate("[{...sessionStorage}, {...localStorage}, document.cookie]")
    assert kept == [{"kvstitch.key": keyed[1]}, {}, ""]
    page.reload()
    page.get_by_text("serving ").wait_for()
    console.ask("Which colour is it?")
    assert len(console.done()) == 1
    page.get_by_label("API key").fill("")
    page.get_by_role("button", name="Use").click()
    page.get_by_text("This service asks for an API key.").wait_for()
    assert page.evaluate("sessionStorage.length") == 0
    console.wrong.clear()


def test_documents_by_collection(console: Console, keyed: tuple[Service, str]) -> None:
    page, (service, _) = console.page, keyed
    page.get_by_role("tab", name="Documents").click()
    for collection in ("default", "second"):
        page.locator("#documents-collection option").first.wait_for(state="attached")
        query = urlencode({"collection": collection})
        told = service.http.get(f"/admin/documents?{query}").json()["documents"]
        page.get_by_role("tabpanel").get_by_label("Collection").select_option(collection)
        page.get_by_text(f"{len(told)} documents shown").wait_for()
        rows = page.locator("#documents tr")
        shown = [rows.nth(i).locator("th, td").all_text_contents()[:5] for i in range(rows.count())]
        numbers = ("num_tokens", "num_chunks", "num_chars")
        assert shown == [
            [d["doc_id"], d["title"], *(str(d[number]) for number in numbers)] for d in told
        ]


def test_a_document_is_deleted_only_when_that_is_meant(
    console: Console, keyed: tuple[Service, str]
) -> None:
    page, (service, _) = console.page, keyed
    service.ingest([{"doc_id": "a/b c?", "text": "It is gone soon.", "collection": "doomed"}])
    page.get_by_role("tab", name="Documents").click()
    page.locator("#documents-collection option[value=doomed]").wait_for(state="attached")
    page.get_by_role("tabpanel").get_by_label("Collection").select_option("doomed")
    page.get_by_text("1 document shown").wait_for()
    delete = page.get_by_role("button", name="Delete a/b c?")
    delete.click()
    dialog = page.get_by_role("dialog")
    assert "a/b c?" in (dialog.text_content() or "")
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    path = "/admin/documents/a/b%20c%3F?collection=doomed"
    assert service.http.get(path).status_code == 200
    delete.click()
    dialog.get_by_role("button", name="Delete").click()
    page.get_by_text("a/b c? is deleted, 1 chunk.").wait_for()
    assert page.locator("#documents tr").count() == 0
    assert page.evaluate("document.activeElement.id") == "documents-collection"
    assert service.http.get(path).status_code == 404


def test_jobs_and_cancelling_one(
    console: Console, keyed: tuple[Service, str], corpus: Documents
) -> None:
    """A job that takes long is stopped from the page; the rows are the API's."""
    page, (service, _) = console.page, keyed
    many = [
        {"doc_id": f"{n}-{d['doc_id']}", "text": f"Copy {n}. {d['text']}"}
        for n in range(8)
        for d in corpus
    ]
    body = {"documents": many, "collection": "bulk"}
    job = service.http.post("/admin/precompute", json=body).json()["job_id"]
    page.get_by_role("tab", name="Jobs").click()
    page.get_by_role("button", name=f"Cancel job {job}").click()
    path = f"/admin/jobs/{job}"
    service.until(lambda: service.http.get(path).json()["state"] == "cancelled", "not cancelled")
    page.get_by_role("button", name="Refresh").click()
    page.locator("#jobs .badge.cancelled").wait_for()
    told = service.http.get("/admin/jobs?limit=50").json()["jobs"]
    rows = page.locator("#jobs tr")
    assert rows.count() == len(told)
    for number, one in enumerate(told):
        cells = rows.nth(number).locator("th, td").all_text_contents()
        counts = [str(one["progress"][name]) for name in ("done", "failed", "total")]
        assert [cells[0], cells[1], *cells[3:6]] == [one["job_id"][:12], one["state"], *counts]


def test_tiers_as_the_status_has_them(console: Console, keyed: tuple[Service, str]) -> None:
    page, (service, _) = console.page, keyed
    page.get_by_role("tab", name="Tiers").click()
    page.locator("#tiers tr").first.wait_for()

    def agree() -> bool:
        page.get_by_role("button", name="Refresh").click()
        told = service.http.get("/status").json()["tiers"]
        rows = [r.locator("th, td").all_text_contents() for r in page.locator("#tiers tr").all()]
        names = {"memory": "RAM", "ssd": "SSD"}
        wanted = [[names[tier], "healthy", f"{of['entries']:,.0f}"] for tier, of in told.items()]
        return [[row[0].strip(), row[1], row[2]] for row in rows] == wanted

    service.until(agree, "the page shows other tiers than /status")
    assert page.get_by_text("KV pool free").count() == 1
