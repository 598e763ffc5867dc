"""Files to hand in: their names become document ids."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvstitch.client.errors import InvalidRequest

# A path, or a name and its content.
File = str | Path | tuple[str, bytes]
# What the service takes; the system's table of media types need not know them.
TYPES = {
    ".htm": "text/html",
    ".html": "text/html",
    ".markdown": "text/markdown",
    ".md": "text/markdown",
    ".pdf": "application/pdf",
    ".txt": "text/plain",
}


def read_files(files: Iterable[File]) -> list[tuple[str, bytes, str]]:
    """(name, content, media type) of every file. Blocks while it reads.

    Raises:
        InvalidRequest: Two files have the same name.
        OSError: A file cannot be read.
    """
    out: dict[str, tuple[str, bytes, str]] = {}
    for file in files:
        if isinstance(file, tuple):
            name, content = file
        else:
            name, content = Path(file).name, Path(file).read_bytes()
        if name in out:
            raise InvalidRequest(
                f"two files are named {name!r}: give (name, content) to name them", field="files"
            )
        out[name] = (name, content, _media_type(name))
    return list(out.values())


def form_fields(collection: str | None, metadata: Mapping[str, Any] | None) -> dict[str, str]:
    """Fields of the form that hold for every file."""
    fields = {} if collection is None else {"collection": collection}
    return fields if metadata is None else {**fields, "metadata": json.dumps(dict(metadata))}


def _media_type(name: str) -> str:
    suffix = Path(name).suffix.lower()
    return TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
