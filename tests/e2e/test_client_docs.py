"""docs/client.md tells the truth: its examples run in their order and print what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstitch import Client
from tests.e2e.models import DEMO
from tests.e2e.service import Service

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^```python\n(.*?)```\n```text\n(.*?)```$", re.S | re.M)
ANYTHING = "…"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The real demo model, without documents."""
    with Service(DEMO, tmp_path_factory.mktemp("client-docs") / "data") as service:
        yield service


def test_every_example_prints_what_the_page_says(
    demo: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSTITCH_URL", f"http://127.0.0.1:{demo.port}")
    names: dict[str, Any] = {}
    try:
        for number, (code, expected) in enumerate(EXAMPLE.findall(PAGE)):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, f"docs/client.md, example {number}", "exec"), names)
            pattern = re.escape(expected.strip()).replace(ANYTHING, ".*?")
            assert re.fullmatch(pattern, printed.getvalue().strip(), re.S), (
                code,
                printed.getvalue(),
            )
    finally:
        if isinstance(client := names.get("client"), Client):
            client.close()


def test_no_example_is_left_out() -> None:
    assert len(EXAMPLE.findall(PAGE)) == len(re.findall(r"^```python\n", PAGE, re.M)) >= 8


def test_every_method_of_the_client_is_in_the_table() -> None:
    told = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| `.*$", PAGE, re.M))))
    public = {name for name in vars(Client) if not name.startswith("_")} - {"close"}
    assert public <= told, public - told
