"""/ui without a browser: every file is served as what it is, and is part of the package."""

from __future__ import annotations

import re
import tomllib
from contextlib import closing
from http.client import HTTPConnection
from os.path import normpath
from pathlib import Path, PurePosixPath

import pytest

from kvstitch.service.gateway.documents.parsing.file_kinds import media_type_of_suffix
from kvstitch.service.gateway.http.routes.pages import FILES, console_page
from tests.service.gateway.rig import Rig

ROOT = Path(__file__).parents[5]
NAMES = sorted(str(file.relative_to(FILES)) for file in FILES.rglob("*") if file.is_file())
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


def content(name: str) -> bytes:
    return console_page().encode() if name == "index.html" else (FILES / name).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_served_as_what_it_is(shared: Rig, name: str) -> None:
    reply = shared.http.get(f"/ui/{name}")
    assert reply.content == content(name)
    assert reply.headers["content-type"].startswith(TYPES[Path(name).suffix])
    assert reply.headers["content-security-policy"].startswith("default-src 'none'; ")
    again = shared.http.get(f"/ui/{name}", headers={"If-None-Match": reply.headers["etag"]})
    assert again.status_code == 304
    assert "content-security-policy" in again.headers


def test_the_folder_leads_to_the_page(shared: Rig) -> None:
    moved = shared.http.get("/ui", follow_redirects=False)
    assert moved.status_code == 307 and moved.headers["location"].endswith("/ui/")
    assert shared.http.get("/ui/").content == content("index.html")
    assert shared.http.post("/ui/").status_code == 405


def test_every_file_is_in_the_wheel() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    package = ROOT / "kvstitch" / "service"
    packed = {
        file
        for pattern in tool["setuptools"]["package-data"]["kvstitch.service"]
        for file in package.glob(f"{pattern}/*" if pattern.endswith("**") else pattern)
    }
    lost = [name for name in NAMES if FILES / name not in packed]
    assert NAMES and lost == []


def test_the_page_names_only_files_that_are_there() -> None:
    """And every file is named by another one: none is left over."""
    named = {"index.html"}
    for name in NAMES:
        if not name.endswith((".html", ".js")):
            continue
        text = (FILES / name).read_text()
        relative = re.findall(r'(?:src|href)="([^"#]+)"', text)
        relative += re.findall(r'from "(\.[^"]+)"', text)
        named |= {normpath(f"{PurePosixPath(name).parent}/{path}") for path in relative}
        assert not re.search(r"""<style|\sstyle="|\son[a-z]+="|innerHTML|eval\(""", text), name
    assert named == set(NAMES)


@pytest.mark.parametrize(
    "path",
    [
        *("/ui/../api.py", "/ui/%2e%2e/api.py", "/ui/lib/..%2f..%2f..%2fapi.py", "/ui//etc/passwd"),
        *("/ui/lib/../../../api.py", "/ui/lib%2fapi.js%00", "/ui/chat", "/ui/lib/", "/ui/nothing"),
    ],
)
def test_no_path_leads_out_of_the_folder(shared: Rig, path: str) -> None:
    """Sent as it is written: a client's library would tidy it up."""
    address = shared.http.base_url.host, shared.http.base_url.port
    with closing(HTTPConnection(*address)) as connection:
        connection.request("GET", path)
        reply = connection.getresponse()
        assert reply.status == 404, (path, reply.read())


def test_the_root_leads_to_the_console(shared: Rig) -> None:
    page = shared.http.get("/", headers={"Accept": "text/html,*/*;q=0.8"}, follow_redirects=False)
    assert page.status_code == 307 and page.headers["location"] == "ui/"
    followed = shared.http.get("/", headers={"Accept": "text/html"}, follow_redirects=True)
    assert followed.content == content("index.html")
    told = shared.http.get("/")  # httpx sends Accept: */*
    assert told.json()["service"] == "kvstitch" and told.headers["vary"] == "Accept"
    for name in ("console", "docs", "openapi", "health"):
        # A worker that had no processor for a second makes the service not ready.
        assert shared.http.get(told.json()[name]).status_code in (
            (200, 503) if name == "health" else (200,)
        )


def test_the_file_chooser_offers_every_format_that_is_read() -> None:
    (accepted,) = re.findall(r'accept="([^"]+)"', console_page())
    assert set(accepted.split(",")) == {*media_type_of_suffix(), ".jsonl", ".ndjson"}
