"""Every kind of file is read with nothing but what the package requires: no library that happens
to be installed for tests, or for something else, is behind it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import (
    PackageNotFoundError,
    entry_points,
    packages_distributions,
    requires,
)
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kvstitch.service.plugins.hookspecs import GROUP
from tests.service.gateway.documents.encrypted_pdfs import AES_128, AES_256
from tests.service.gateway.documents.office_files import (
    make_docx,
    make_eml,
    make_pptx,
    make_xlsx,
)
from tests.service.gateway.documents.pdfs import make_pdf

REPOSITORY = Path(__file__).resolve().parents[5]
TEXT = "heron"
FILES = {
    "md": b"# A heron",
    "text": ("Die Größe der Küche beträgt fünf Schritte, und der heron steht am Fluß. " * 4).encode(
        "cp1252"
    ),
    "html": b"<p>heron <math><mi>x</mi></math></p>",
    "csv": b"Bird;Town\nheron;Lorvik\n",
    "eml": make_eml("heron"),
    "docx": make_docx("heron"),
    "pptx": make_pptx("heron"),
    "xlsx": make_xlsx({"S": [["Bird"], ["heron"]]}),
    "pdf": make_pdf(["heron"]),
    "pdf, AES-128": AES_128,
    "pdf, AES-256": AES_256,
}
READ = """
import json, sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def __init__(self, names):
        self.names = set(names)
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing(json.loads(sys.argv[1])))
from kvstitch.service.gateway.documents.parsing.file_kinds import format_of, kind_of_start
from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds
from kvstitch.service.gateway.documents.parsing.parser_process import _parse
content = sys.stdin.buffer.read()
kind = kind_of_start(content) or sys.argv[2]
print(json.dumps(_parse(format_of(kind).parser, content, Bounds(100, 100_000))["text"]))
"""


def expected_text(kind: str) -> str:
    """Return what stands in a file of this kind."""
    return "88 crowns" if "AES" in kind else TEXT


def key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def not_required() -> list[str]:
    """Modules of distributions that are installed here and that the package does not require.

    Plugins are loaded wherever they are installed; what they need besides stays away.
    """
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    waiting = [Requirement(one) for one in project["dependencies"]]
    required = {key(project["name"])}
    while waiting:
        one = waiting.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        if key(one.name) not in required:
            required.add(key(one.name))
            try:
                waiting += [Requirement(more) for more in requires(one.name) or ()]
            except PackageNotFoundError:
                continue
    modules = packages_distributions()
    plugins = {dist.name for point in entry_points(group=GROUP) if (dist := point.dist)}
    required |= set(map(key, plugins))
    return [name for name, of in modules.items() if not required & set(map(key, of))]


@pytest.mark.parametrize("kind", FILES)
def test_each_kind_is_read_with_what_is_required(kind: str, not_required: list[str]) -> None:
    assert "pytest" in not_required and "torch" not in not_required
    done = subprocess.run(
        [sys.executable, "-c", READ, json.dumps(not_required), kind.partition(",")[0]],
        input=FILES[kind], capture_output=True, cwd=REPOSITORY, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert expected_text(kind) in json.loads(done.stdout)
