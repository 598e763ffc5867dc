"""AsciiDoc: headings of both forms."""

from __future__ import annotations

from kvstitch_formats.asciidoc import parse
from service.gateway.documents.parsing.parsed_file import Bounds


def test_asciidoc() -> None:
    """Headings of both forms; lines in blocks of code, examples, comments and tables are none."""
    text = (
        "= The Manual\nAda <ada@example.org>\n:toc:\n\n== Parts\n\n----\n== no heading\n----\n\n"
        "=== Screws\n\n====\n== nor this\n====\n\n|===\n|Part |Price\n\n|lid |2\n|===\n\n"
        "Care\n----\n\nDry it.\n\n////\n== hidden\n////\n\nCleaning it\n~~~~~~~~~~~\n\n.A title\n"
        "--------\n== code\n--------\n\n```sh\n== x\n```\n\n== End\n"
    )
    found = parse(text.encode(), Bounds(10, 10_000))
    assert found.text == text and found.title == "The Manual"
    labels = ["The Manual", "Parts", "Screws", "Care", "Cleaning it", "End"]
    assert [label for _, _, label in found.marks] == labels
    assert all(text[at:].split("\n")[0].strip("= ") == label for at, _, label in found.marks)
