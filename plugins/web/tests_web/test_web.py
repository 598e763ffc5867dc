"""`kvstitch web`, from a real server on loopback."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kvstitch.service.cli import main
from kvstitch_web.fetch import Fetcher, FetchLimits, NotFetched, not_public
from tests.service.gateway.conftest import folder, rig
from tests.service.gateway.documents.pdfs import make_pdf
from tests.service.gateway.rig import Rig

__all__ = ["folder", "rig"]

LOCS = "<url><loc>{0}/page.html</loc></url><url><loc>{0}/plain</loc></url>"
NAMESPACE = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'


class Site:
    """Answers by path: (status, headers, body); asked holds the paths that were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.url = ""

    def page(self, path: str, media_type: str, body: bytes) -> None:
        self.pages[path] = (200, {"Content-Type": media_type}, body)

    def redirect(self, path: str, to: str) -> None:
        self.pages[path] = (302, {"Location": to}, b"")


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            status, headers, body = made.pages.get(self.path, (404, {}, b""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            if self.path == "/slow":
                for _ in range(3000):
                    time.sleep(0.05)
                    self.wfile.write(b"x")
                    self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made.page("/page.html", "text/html", b"<h1>Page</h1><p>Bergen is rainy.")
    made.page("/plain", "text/plain", b"Oslo has a fjord.")
    yield made
    server.shutdown()
    server.server_close()


def ingest(rig: Rig, capsys: pytest.CaptureFixture[str], *given: str) -> tuple[int, dict[str, Any]]:
    code = main(["web", "--json", "--url", rig.url, *given])
    return code, json.loads(capsys.readouterr().out)


def test_urls_become_documents(
    rig: Rig, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.page("/kettle.pdf", "application/octet-stream", make_pdf(["A lid."]))
    site.page("/latin.html", "text/html; charset=ISO-8859-1", "<p>Grüße".encode("latin-1"))
    site.page("/film", "video/mp4", b"ftyp")
    site.page("/wrong", "text/plain", b"caf\xe9")
    site.pages["/zipped"] = (200, {"Content-Encoding": "gzip"}, b"")
    site.redirect("/moved", "/plain")
    site.redirect("/loop", "/loop")
    site.redirect("/elsewhere", "http://localhost:1/secret")
    site.redirect("/file", "file:///etc/passwd")
    names = ("page.html", "kettle.pdf", "latin.html", "film", "wrong", "zipped", "moved", "loop")
    lines = [f"{site.url}/{name}" for name in (*names, "elsewhere", "file", "gone", "page.html#b")]
    others = ["http://no.host.invalid/", "ftp://127.0.0.1/x", "http://u:p@127.0.0.1/", "words"]
    (tmp_path / "urls").write_text("# pages\n\n" + "\n".join([*lines, *others]) + "\n")
    given = ["--urls", str(tmp_path / "urls"), "--allow-host", "127.0.0.1"]
    given += ["--allow-host", "no.host.invalid", "--allow-private-addresses"]
    code, result = ingest(rig, capsys, *given)
    assert code == 1 and result["found"] == 16 and result["ingested"] == 4
    assert result["skipped_by_reason"] == {"of another kind": 1, "named before": 1}
    said = {error["doc_id"].removeprefix(site.url): error["message"] for error in result["errors"]}
    for path, part in {
        "/wrong": "UTF-8", "/zipped": "compressed", "/loop": "more than 5 redirects",
        "/elsewhere": "localhost; see --allow-host", "/file": "no http:// or", "/gone": "HTTP 404",
        "http://no.host.invalid/": "not known", "ftp://127.0.0.1/x": "no http:// or",
        "http://u:p@127.0.0.1/": "user name", "words": "no http:// or",
    }.items():  # fmt: skip
        assert part in said.pop(path), path
    assert not said
    listed = rig.http.get("/admin/documents").json()["documents"]
    texts = {}
    for one in listed:
        stored = rig.http.get(f"/admin/documents/{quote(one['doc_id'], safe='/')}").json()
        texts[one["doc_id"].removeprefix(site.url)] = stored["text"]
    assert texts == {
        "/page.html": "# Page\nBergen is rainy.", "/kettle.pdf": "A lid.",
        "/latin.html": "Grüße", "/moved": "Oslo has a fjord.",
    }  # fmt: skip


def test_a_sitemap_of_sitemaps(rig: Rig, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    index = f"<sitemapindex {NAMESPACE}><sitemap><loc>{site.url}/s</loc></sitemap></sitemapindex>"
    site.page("/sitemap.xml", "application/xml", index.encode())
    pages = f"<urlset {NAMESPACE}>{LOCS.format(site.url)}</urlset>"
    site.page("/s", "application/xml", pages.encode())
    given = ["--sitemap", f"{site.url}/sitemap.xml", "--allow-private-addresses"]
    assert ingest(rig, capsys, *given, "--max-urls", "1")[1]["skipped_by_reason"] == {
        "beyond --max-urls": 1
    }
    code, result = ingest(rig, capsys, *given)
    assert code == 0 and (result["ingested"], result["unchanged"]) == (1, 1)
    for body in (b"<urlset", b'<!DOCTYPE x [<!ENTITY a "b">]><urlset>&a;</urlset>'):
        site.page("/bad.xml", "application/xml", body)
        given = ["web", "--sitemap", f"{site.url}/bad.xml", "--allow-private-addresses"]
        assert main([*given, "--url", rig.url]) == 1
        assert "sitemap" in capsys.readouterr().err


def test_private_addresses_are_not_asked(
    rig: Rig, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = site.url.rsplit(":", 1)[1]
    hosts = ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "127.1")
    (tmp_path / "urls").write_text("\n".join(f"http://{host}:{port}/plain" for host in hosts))
    given = ["--urls", str(tmp_path / "urls")]
    given += [part for host in hosts for part in ("--allow-host", host.strip("[]"))]
    code, result = ingest(rig, capsys, *given)
    assert code == 1 and result["failed"] == len(hosts) and site.asked == []
    assert result["failed_by_reason"] == {"its host is at a private address": len(hosts)}


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1", "172.16.0.1", "192.168.1.1", "127.8.8.8", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1",
        "ff02::1", "fec0::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "2001:0:1::",
        "::a00:1", "64:ff9b:1::a00:1",
    ],
)  # fmt: skip
def test_what_is_not_public(address: str) -> None:
    assert not_public(["93.184.216.34", address]) == address


def test_a_name_that_changes_and_a_redirect_lead_to_no_private_address(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address that was checked is asked; after a redirect the next one is checked."""
    port = int(site.url.rsplit(":", 1)[1])
    public, private = "93.184.216.34", "127.0.0.1"
    answers = {"changes.test": [public, private, private], "inside.test": [private]}
    dialled: list[str] = []

    def resolve(host: str, port: int, *_: Any, **more: Any) -> list[Any]:
        queue = answers.get(host, [host])
        address = queue.pop(0) if len(queue) > 1 else queue[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    def dial(address: tuple[str, int], *_: Any, **__: Any) -> Any:
        dialled.append(address[0])
        return connect((private, port))  # where a public server would be

    connect = socket.create_connection
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", dial)
    limits = FetchLimits(frozenset(answers), 1000, 60.0)
    site.redirect("/inside", f"http://inside.test:{port}/plain")
    with Fetcher(limits) as fetcher:
        with pytest.raises(NotFetched, match="private address"):
            fetcher.get(f"http://changes.test:{port}/inside")
        assert dialled == [public] and site.asked == ["/inside"]
    with Fetcher(limits) as fetcher, pytest.raises(NotFetched, match="private address"):
        fetcher.get(f"http://changes.test:{port}/plain")
    assert dialled == [public]


def test_what_is_public() -> None:
    assert not_public(["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"]) is None


def test_a_page_may_be_neither_large_nor_slow(site: Site) -> None:
    site.page("/large", "text/plain", b"x" * 2000)
    site.page("/slow", "text/plain", b"x")
    hosts = frozenset(["127.0.0.1"])
    with (
        Fetcher(FetchLimits(hosts, 1000, 60.0, private=True)) as fetcher,
        pytest.raises(NotFetched, match="more than 1000 bytes"),
    ):
        fetcher.get(f"{site.url}/large")
    with (
        Fetcher(FetchLimits(hosts, 100_000, 0.3, private=True)) as fetcher,
        pytest.raises(NotFetched, match="took more than"),
    ):
        fetcher.get(f"{site.url}/slow")


def test_wrong_arguments(rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "urls").write_text("http://example.org/")
    for given, part in (
        ([], "say what to fetch"),
        (["--urls", str(tmp_path / "urls")], "--allow-host"),
        (["--urls", str(tmp_path / "none"), "--allow-host", "x"], "cannot be read"),
    ):
        assert main(["web", *given, "--url", rig.url]) == 2
        assert part in capsys.readouterr().err
