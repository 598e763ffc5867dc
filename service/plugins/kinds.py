"""What hooks return: one small declaration for each kind of thing that a plugin can add.

Where a declaration names code as "package.module:name", it is imported where it is needed, which
may be another process: the worker's, or one that parses a file.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol


@dataclass(frozen=True)
class Verb:
    """A command: `kvstitch NAME`.

    Attributes:
        name: As it is typed.
        help: One line for `kvstitch --help`.
        add_arguments: Adds options, and sets the default `command`, which gets the parsed arguments
            and returns the exit code.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True)
class FileFormat:
    """A kind of document.

    Attributes:
        kind: Its name inside; formats with one parser share it.
        media_type: As uploads name it.
        suffixes: Of file names, with the dot.
        parser: "module:function" that takes bytes and Bounds and returns a ParsedFile. It runs in a
            process with limits of time and memory, which loads no plugin but this module.
        starts: First bytes by which a file is known whatever its name says.
        looks: The same for texts: a pattern of how one begins, without blanks before it.
        binary: May be as large as PDF files; else as texts.
        text: Bytes in a charset, which whoever sends a file may name; the parser gets UTF-8 then.
        in_folders: Whether files of a folder that is ingested are taken.
        part: Of zip archives, whose kind is "office": the file inside by which this one is known,
            whatever its name says, or "file=how that begins".
    """

    kind: str
    media_type: str
    suffixes: tuple[str, ...]
    parser: str
    starts: tuple[bytes, ...] = ()
    binary: bool = False
    text: bool = False
    in_folders: bool = True
    part: str = ""
    looks: bytes = b""


@dataclass(frozen=True)
class PictureReader:
    """Reads text from pictures and scanned pages (OCR).

    Attributes:
        reader: "module:class" that the process that parses a file makes without arguments.
        page_cpu_s: Seconds of CPU that a page may take beyond the file's own.
        memory_bytes: Memory that it may take beyond the file's own.
    """

    reader: str
    page_cpu_s: int
    memory_bytes: int


@dataclass(frozen=True)
class TierKind:
    """A tier of the KV store. It is everywhere in effect where `is_set` says so.

    Attributes:
        name: In metrics and logs, and what `write_tiers` may name.
        make: "module:function" that takes the worker's settings (`WorkerSettings`; those that the
            plugin declares are in its `plugins`) and whether buffers are pinned, and returns a
            `kvstore` tier. It is called in the worker.
        is_set: Whether settings (`Settings`) name such a tier.
        first_read_s: About how long its first byte takes; tiers are asked fastest first.
        bytes_per_s: About how fast it is read; both are measured from its first read on.
        shown_as: As which of the API's sources tokens from it are told: "ssd", "redis" or "s3".
    """

    name: str
    make: str
    is_set: Callable[[Any], bool]
    first_read_s: float
    bytes_per_s: float
    shown_as: str = "redis"


@dataclass(frozen=True)
class Adapters:
    """Reads LoRA adapters.

    Attributes:
        examine: "module:function" that takes a folder and returns what the adapter is, or a
            `FolderFault` (service/worker/model/folder_checks.py); it loads nothing.
        add: "module:function" that gives a decoder the adapter of a name and folder, and returns by
            how much its logits differ from transformers', and by how much they move; it may raise
            ModelRefused.
    """

    examine: str
    add: str


@dataclass(frozen=True)
class Tables:
    """Tables of a plugin: in a file of the data folder, or in PostgreSQL beside the gateways' own.

    Attributes:
        file: Its name in the data folder, where there is no PostgreSQL.
        schema: "module:name" of a `kvstitch.retriever.sql.revisions.Schema`; names of tables must
            be unique.
    """

    file: str
    schema: str


class ModelSource(Protocol):
    """Makes a folder in Hugging Face's layout of a model that is none yet."""

    def find(self) -> Path | None:
        """Return the folder if it is made, else None; raises ModelRefused."""

    def prepare(self) -> Path:
        """Return the folder, after making it; raises ModelRefused or ModelUnavailable."""

    def describe(self) -> tuple[str, str]:
        """Return what is known of the model before its folder is made, and what makes it; raises
        ModelRefused."""


class IdentityProvider(Protocol):
    """Says who sends a token that is no API key."""

    async def verify(self, token: str) -> Any:
        """Return the `Sender`, of auth/keys.py; raises InvalidToken, IdentityUnavailable."""

    def metadata_url(self, request: Any) -> str | None:
        """Return where a client that lacks a token finds the issuer (RFC 9728); None: nowhere."""

    async def close(self) -> None: ...


class GatewayPart:
    """What a plugin adds to one gateway process: routes, middleware, and work beside requests.

    Attributes:
        routers: FastAPI routers.
        middleware: ASGI classes with their arguments, inside authentication and around routes: they
            see every request with its sender, and may answer in place of the route.
        errors: By the path of a route whose clients do not read errors as the API writes them: what
            makes status and body of a KvstitchError and the request's headers. Such a route says by
            itself in `responses` which errors it has.
    """

    routers: Sequence[Any] = ()
    middleware: Sequence[tuple[Any, Mapping[str, Any]]] = ()
    errors: Mapping[str, Callable[[Any, Mapping[str, str]], tuple[int, dict[str, Any]]]] = (
        MappingProxyType({})
    )

    async def start(self) -> None:
        """Begin, once databases are open and before requests are served; may raise."""

    async def close(self) -> None:
        """End what is under way; everything else is still open."""

    async def settings_changed(
        self, settings: Any, changed: Sequence[str], need_restart: Sequence[str]
    ) -> None:
        """Settings were read again, and `changed` is about to be taken over; may raise."""
