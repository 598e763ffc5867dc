"""The index of a results folder: links to its experiments, and the main table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

_TABLE = "## The main table\n"


def write(folder: Path, names: Iterable[str], headline: str | None) -> Path:
    """Writes `README.md` in `folder`, with `headline` as main table; None keeps the present one."""
    file = folder / "README.md"
    if headline is None and file.exists():
        headline = file.read_text(encoding="utf-8").partition(_TABLE)[2].strip() + "\n"
    links = [_link(folder, name) for name in names if (folder / f"{name}.json").exists()]
    text = ["# Quality: tables and figures\n", "How they are made: docs/quality.md.\n", *links, ""]
    if headline is not None:
        text += [_TABLE, headline]
    file.write_text("\n".join(text), encoding="utf-8")
    return file


def _link(folder: Path, name: str) -> str:
    record = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    commit = record["environment"]["commit"][:12]
    return f"- [{record['what']}]({name}.md), commit {commit}"
