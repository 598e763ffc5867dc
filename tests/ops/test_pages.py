"""The pages: their links lead somewhere, README is short, and CONTRIBUTING's method works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops import tools

REPOSITORY = tools.REPOSITORY
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    REPOSITORY / "plugins/README.md",
    *sorted(REPOSITORY.glob("plugins/*/README.md")),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(
    r"`((?:service|kvstore|retriever|demo|benchmarks|loadtest|tests|docker|helm|scripts)/[\w./*-]+)`"
)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in LINK.findall(text):
        if link.startswith("http"):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link
    for path in PATH.findall(text):
        assert list(REPOSITORY.glob(path.rstrip("./"))), path


def test_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").split()) <= 420


@pytest.mark.slow
def test_the_method_of_the_contributing_page_passes_the_contract_tests(tmp_path: Path) -> None:
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.split("## A method of your own")[1].split("\n## ")[0]
    name = re.search(r"`methods/fusion/(\w+)\.py`", section)
    code = re.search(r"```python\n(.*?)```", section, re.S)
    assert name and code
    for kind in ("fusion", "eviction"):
        (tmp_path / kind).mkdir()
    (tmp_path / "fusion" / f"{name[1]}.py").write_text(code[1], encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-k", name[1]]
    ran = subprocess.run(
        [*command, "tests/service/worker/methods/test_methods.py"],
        cwd=REPOSITORY,
        env={**os.environ, "KVSTITCH_METHODS_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
