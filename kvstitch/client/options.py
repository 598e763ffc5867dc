"""What calls take: options as keyword arguments, and files. docs/api.md says what each means."""

import mimetypes
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from kvstitch.client.errors import InvalidRequest

Retrieval = Literal["dense", "sparse", "hybrid"]


class SearchOptions(TypedDict, total=False):
    """Which passages are searched for. None is the same as leaving it out."""

    collection: str | None
    top_k: int | None
    documents: list[str] | None
    filter: dict[str, Any] | None
    retrieval: Retrieval | None
    rerank: bool
    min_score: float | None
    neighbours: int
    include_text: bool
    deadline_s: float | None


class GenerateOptions(SearchOptions, total=False):
    """What to answer from, and how."""

    messages: list[dict[str, str]] | None
    inline_documents: list[dict[str, Any]] | None
    fusion: dict[str, Any] | None
    eviction: dict[str, Any] | None
    profile: Literal["fast", "balanced", "exact"] | None
    adapter: str | None
    cold: Literal["in_context", "as_stored"] | None
    exact_below: float | None
    history: Literal["compute", "reuse"] | None
    prefix_cache: bool
    condense: Literal["off", "join", "model"] | None
    attribute: bool
    cite: Literal["none", "marks", "inline"]
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int | None
    stop: str | list[str] | None
    logprobs: int | None
    include_tokens: bool


class NewDocument(TypedDict, total=False):
    """A document to store; `doc_id` and `text` are needed."""

    doc_id: str
    text: str
    title: str
    metadata: dict[str, Any]
    collection: str | None
    readers: list[str] | None
    writers: list[str] | None


class UploadOptions(TypedDict, total=False):
    """What holds for all documents that are handed in together. `readers` are groups that may read
    those that name none (none: all of the tenant), `writers` groups that may change them (none: who
    may now, of new ones the sender's). `source`: what the place is called that they come from; see
    `source_documents`. With the same `idempotency_key` the same documents are taken once; None: one
    that is used for this call and its retries only."""

    collection: str | None
    readers: Sequence[str]
    writers: Sequence[str]
    source: str | None
    idempotency_key: str | None


# A path, or a name and its content, or these and its media type.
File = str | Path | tuple[str, bytes] | tuple[str, bytes, str]
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
    """(name, content, media type) of every file. Blocks while it reads. Raises InvalidRequest: two
    files have the same name; OSError: a file cannot be read."""
    out: dict[str, tuple[str, bytes, str]] = {}
    for file in files:
        if not isinstance(file, tuple):
            file = (Path(file).name, Path(file).read_bytes())
        name, content, *kind = file
        if name in out:
            raise InvalidRequest(
                f"two files are named {name!r}: give (name, content) to name them", field="files"
            )
        out[name] = (name, content, kind[0] if kind else _media_type(name))
    return list(out.values())


def _media_type(name: str) -> str:
    suffix = Path(name).suffix.lower()
    return TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
