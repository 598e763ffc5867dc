"""Where pages, slides, sheets and headings begin in a document's text, so that citations can name
them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MarkKind = Literal["page", "slide", "sheet", "heading"]


@dataclass(frozen=True)
class Mark:
    """A place in a document's text, which holds until the next mark of its kind.

    Attributes:
        start: its first character in the text.
        kind: what begins there. A document has pages, slides or sheets, and never two of these.
        label: number of the page or slide, name of the sheet, or the heading.
    """

    start: int
    kind: MarkKind
    label: str


@dataclass(frozen=True)
class Place:
    """What a character of a document belongs to; None where no mark comes before it.

    Attributes:
        page: number of its page or slide, or name of its sheet.
        heading: the last heading before it.
    """

    page: str | None = None
    heading: str | None = None
