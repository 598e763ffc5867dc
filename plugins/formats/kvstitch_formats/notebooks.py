"""Notebooks of Jupyter: text, code and what it printed, as Markdown; pictures are counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.documents.parsing.charsets import decode
from kvstitch.service.gateway.documents.parsing.markup.text_files import parse_markdown
from kvstitch.service.gateway.documents.parsing.parsed_file import (
    Bounds,
    ParsedFile,
    left_out_warnings,
)

MAX_OUTPUT_CHARS = 4000  # of a cell; what is printed beyond it are numbers


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Parse a notebook of version 3 or newer; its title is its first heading of level 1."""
    try:
        made = json.loads(decode(content).text)
        cells = [c for sheet in (made, *made.get("worksheets", [])) for c in sheet.get("cells", [])]
        language = str(made.get("metadata", {}).get("kernelspec", {}).get("language", ""))
        pictures = [0]
        blocks = [block for cell in cells for block in _blocks(cell, language, pictures)]
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidRequest("it is no notebook that can be read: save it anew") from error
    parsed = parse_markdown("\n\n".join(blocks).encode("utf-8", "replace"), bounds)
    bounds.check_chars(len(parsed.text))
    warnings = left_out_warnings({"pictures": pictures[0]})
    return replace(parsed, warnings=(*parsed.warnings, *warnings))


def _blocks(cell: dict[str, Any], language: str, pictures: list[int]) -> Iterator[str]:
    text = _joined(cell.get("source", cell.get("input", "")))
    if cell.get("cell_type") != "code":
        yield text
        return
    if text.strip():
        yield f"```{language}\n{text}\n```"
    for output in cell.get("outputs", []):
        data = output.get("data", output)
        pictures[0] += any(str(kind).startswith(("image/", "png", "jpeg")) for kind in data)
        said = _joined(data.get("text/plain") or output.get("text") or "")
        if output.get("output_type") in ("error", "pyerr"):
            said = f"{output.get('ename', '')}: {output.get('evalue', '')}"
        if said.strip() and not said.startswith("<Figure"):
            cut = said[:MAX_OUTPUT_CHARS] + ("…" if len(said) > MAX_OUTPUT_CHARS else "")
            yield f"Output:\n\n```\n{cut.rstrip()}\n```"


def _joined(text: Any) -> str:
    return text if isinstance(text, str) else "".join(map(str, text))
