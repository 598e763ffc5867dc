"""The Jobs and Tiers tabs: rows as the API has them, and what became of every job."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.conftest import Documents, Serve
from tests.e2e.console.browser import Console
from tests.e2e.console.looks import ONE_AT_ONCE
from tests.e2e.service import HANG_S, Service

pytestmark = pytest.mark.exhaustive


@pytest.fixture
def own(serve: Serve) -> Iterator[Service]:
    """A service for one test, with nothing in it."""
    with serve() as service:
        yield service


@pytest.mark.parametrize("look", ONE_AT_ONCE)
def test_a_job_is_cancelled_from_the_page(
    own: Service, browser: Browser, corpus: Documents, look: dict[str, object]
) -> None:
    """By keyboard alone: what it has left, then that it is cancelled, as the API tells it."""
    console = Console(browser, own, **look)  # type: ignore[arg-type]
    page = console.ready("jobs")
    own.ingest(corpus[:2])  # from then on the service knows how quick it is
    many = [
        {"doc_id": f"{n}-{d['doc_id']}", "text": f"Copy {n}. {d['text']}"}
        for n in range(12)
        for d in corpus
    ]
    body = {"documents": many, "collection": "bulk"}
    job = own.http.post("/admin/precompute", json=body).json()["job_id"]
    page.get_by_role("button", name="Refresh").press("Enter")
    row = page.locator(f'#jobs tr[data-job="{job}"]')
    expect(row.locator(".badge")).to_have_text(re.compile("queued|running"))
    left = re.compile(r"about \d+ (s|min) left")
    expect(row).to_contain_text(left, timeout=1000 * HANG_S)
    row.get_by_role("progressbar").wait_for()
    row.get_by_role("button", name=f"Cancel job {job}").press("Enter")
    expect(row.locator(".badge")).to_have_text("cancelled")
    expect(row.locator(".badge")).to_have_class("badge cancelled")
    assert row.get_by_role("button").count() == 0
    path = f"/admin/jobs/{job}"
    own.until(lambda: own.http.get(path).json()["state"] == "cancelled", "not cancelled")
    page.get_by_role("button", name="Refresh").press("Enter")
    for told in own.http.get("/admin/jobs").json()["jobs"]:
        progress = told["progress"]
        words = f"{progress['done']} of {progress['total']} documents stored"
        if progress["cancelled"]:
            words += f", {progress['cancelled']} cancelled"
        shown = page.locator(f'#jobs tr[data-job="{told["job_id"]}"]')
        expect(shown.locator(".counts")).to_have_text(words)
        expect(shown.locator(".badge")).to_have_text(told["state"])
    assert own.http.get(path).json()["progress"]["cancelled"] > 0
    console.close()
    assert console.wrong == []


def test_a_failed_job_says_why(own: Service, browser: Browser) -> None:
    console = Console(browser, own)
    page = console.ready("jobs")
    page.get_by_text("nothing was ingested yet").wait_for()
    files = [(f"{n}.pdf", (f"{n}.pdf", b"%PDF-1.4 and nothing", "application/pdf")) for n in (1, 2)]
    job = own.http.post("/admin/precompute", files=files).json()["job_id"]
    path = f"/admin/jobs/{job}"
    own.until(lambda: own.http.get(path).json()["state"] == "failed", "it did not fail")
    page.get_by_role("button", name="Refresh").click()
    row = page.locator("#jobs tr")
    expect(row.locator(".badge")).to_have_text("failed")
    first, second = own.http.get(path).json()["errors"]
    expect(row.locator(".problems > p")).to_have_text(f"{first['doc_id']}: {first['message']}")
    row.get_by_text("1 more error").click()
    expect(row.locator("li")).to_have_text(f"{second['doc_id']}: {second['message']}")
    page.get_by_role("button", name="Refresh").click()
    expect(row.locator("li")).to_be_visible()  # what was unfolded stays so
    console.close()
    assert console.wrong == []


def test_a_job_tells_what_is_stored_in_part(own: Service, browser: Browser) -> None:
    console = Console(browser, own)
    page = console.ready("jobs")
    content = "<p>The heron waits.<p hidden>Not today."
    files = {"file": ("a.html", content.encode(), "text/html")}
    job = own.http.post("/admin/precompute", files=files).json()["job_id"]
    path = f"/admin/jobs/{job}"
    own.until(lambda: own.http.get(path).json()["state"] == "succeeded", "it did not succeed")
    page.get_by_role("button", name="Refresh").click()
    row = page.locator("#jobs tr")
    row.get_by_text("1 document stored, but not all of it").click()
    (said,) = own.http.get(path).json()["warnings"]
    expect(row.locator("li")).to_have_text(f"a.html: {said['warnings'][0]['message']}")
    console.close()
    assert console.wrong == []


def test_tiers_as_the_status_has_them(console: Console, service: Service) -> None:
    page = console.ready("tiers")
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
    # With a single worker nothing else is there.
    expect(page.locator("#workers-card")).to_be_hidden()
    assert "workers ready" not in (page.locator("#tiers-status").text_content() or "")
