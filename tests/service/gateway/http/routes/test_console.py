"""/ui without a browser: every file is served as what it is, and is part of the package."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from service.gateway.http.routes.console import FILES
from tests.service.gateway.rig import Rig

ROOT = Path(__file__).parents[5]
NAMES = sorted(file.name for file in FILES.iterdir())
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_served_as_what_it_is(rig: Rig, name: str) -> None:
    reply = rig.http.get(f"/ui/{name}")
    assert reply.content == (FILES / name).read_bytes()
    assert reply.headers["content-type"].startswith(TYPES[Path(name).suffix])
    assert reply.headers["content-security-policy"].startswith("default-src 'none'; ")
    again = rig.http.get(f"/ui/{name}", headers={"If-None-Match": reply.headers["etag"]})
    assert again.status_code == 304
    assert "content-security-policy" in again.headers


def test_the_folder_leads_to_the_page(rig: Rig) -> None:
    moved = rig.http.get("/ui", follow_redirects=False)
    assert moved.status_code == 307 and moved.headers["location"].endswith("/ui/")
    assert rig.http.get("/ui/").content == (FILES / "index.html").read_bytes()
    assert rig.http.post("/ui/").status_code == 405


def test_every_file_is_in_the_wheel() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    patterns = tool["setuptools"]["package-data"]["service"]
    lost = [n for n in NAMES if not any(fnmatch(f"gateway/ui/{n}", p) for p in patterns)]
    assert NAMES and lost == []


def test_the_page_names_only_files_that_are_there() -> None:
    text = "".join((FILES / name).read_text() for name in NAMES if name.endswith((".html", ".js")))
    named = re.findall(r'(?:src|href)="([^"#]+)"', text) + re.findall(r'from "\./([^"]+)"', text)
    assert named and set(named) <= set(NAMES)
    assert not re.search(r"""https?://|<style|\sstyle="|\son[a-z]+="|innerHTML|eval\(""", text)
