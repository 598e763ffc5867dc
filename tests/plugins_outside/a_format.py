"""A format of documents outside the tree."""

from __future__ import annotations

from kvstitch.service.gateway.documents.parsing.parsed_file import Bounds, ParsedFile


def parse(content: bytes, bounds: Bounds) -> ParsedFile:
    """Read a title, and lines that begin with a time."""
    title, *lines = content.decode("utf-8").splitlines()
    spoken = " ".join(line.partition(" ")[2] for line in lines)
    return ParsedFile(spoken[: bounds.chars], title)
