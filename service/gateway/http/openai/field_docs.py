"""Writes the tables of docs/openai.md from the tables of fields.

python -m service.gateway.http.openai.field_docs            write them
python -m service.gateway.http.openai.field_docs --check    fail if the page is out of date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from service.gateway.http.openai import field_table
from service.gateway.http.openai.field_rules import FieldRule, Rules

FILE = Path(__file__).parents[4] / "docs" / "openai.md"
BEGIN, END = "<!-- fields -->", "<!-- end of fields -->"
REMEDY = (
    "docs/openai.md is not what the code declares: run "
    "python -m service.gateway.http.openai.field_docs"
)
TABLES: dict[str, Rules] = {
    "/v1/chat/completions": field_table.CHAT,
    "/v1/completions": field_table.COMPLETION,
    "/v1/responses": field_table.RESPONSES,
    "/v1/embeddings": field_table.EMBEDDINGS,
    "A message of a chat": field_table.MESSAGE,
    "A part of a message's content": field_table.CONTENT_PART,
    "A tool": field_table.TOOL,
    "Its function": field_table.FUNCTION,
    "stream_options": field_table.STREAM_OPTIONS,
    "response_format": field_table.RESPONSE_FORMAT,
    "structured_outputs": field_table.STRUCTURED_OUTPUTS,
    "An item of the input of /v1/responses": field_table.INPUT_ITEM,
    "text of /v1/responses": field_table.TEXT_OPTIONS,
}


def render(page: str) -> str:
    """The page with its tables made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n" + "\n".join(_tables()) + f"\n{END}{after}"


def _tables() -> Iterator[str]:
    for title, rules in TABLES.items():
        yield from (f"### {title}\n", "| field | here | |", "|---|---|---|")
        ordered = sorted(rules.items(), key=lambda item: (_ORDER[item[1].treatment], item[0]))
        for name, rule in ordered:
            yield f"| `{name}` | {rule.treatment} | {_why(rule)} |"
        yield ""


_ORDER = {"honoured": 0, "noted": 1, "refused": 2}


def _why(rule: FieldRule) -> str:
    harmless = ", ".join(f"`{json.dumps(value)}`" for value in rule.harmless)
    return rule.why + (f"; accepted: {harmless}" if harmless else "")


def main() -> None:
    page = FILE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        sys.exit(None if render(page) == page else REMEDY)
    FILE.write_text(render(page), encoding="utf-8")


if __name__ == "__main__":
    main()
