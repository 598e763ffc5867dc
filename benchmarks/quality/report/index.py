"""The index of a results folder: links to its experiments, and the main table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_TABLE = "## The main table\n"


def write(folder: Path, names: Iterable[str], headline: str | None) -> Path:
    """Writes `README.md` in `folder`, with `headline` as main table; None keeps the present one."""
    file = folder / "README.md"
    if headline is None and file.exists():
        headline = file.read_text(encoding="utf-8").partition(_TABLE)[2].strip() + "\n"
    links = [_link(folder, name) for name in names if (folder / f"{name}.md").exists()]
    text = ["# Quality: tables and figures\n", "How they are made: docs/quality.md.\n", *links, ""]
    if headline is not None:
        text += [_TABLE, headline]
    file.write_text("\n".join(text), encoding="utf-8")
    return file


def _link(folder: Path, name: str) -> str:
    lines = (folder / f"{name}.md").read_text(encoding="utf-8").splitlines()
    commit = next(line for line in reversed(lines) if line.startswith("- Commit: "))
    return f"- [{lines[0].removeprefix('# ')}]({name}.md), c{commit.removeprefix('- C')[:-1]}"
