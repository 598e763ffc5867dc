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
    """A command: `kvstitch NAME`."""

    name: str  # as it is typed
    help: str  # one line for `kvstitch --help`
    # Adds options, and sets the default `command`, which gets the parsed arguments and returns the
    # exit code.
    add_arguments: Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True)
class FileFormat:
    """A kind of document."""

    kind: str  # its name inside; formats with one parser share it
    media_type: str  # as uploads name it
    suffixes: tuple[str, ...]  # of file names, with the dot
    # "module:function" that takes bytes and Bounds and returns a ParsedFile. It runs in a process
    # with limits of time and memory, which loads no plugin but this module.
    parser: str
    starts: tuple[bytes, ...] = ()  # first bytes by which a file is known whatever its name says
    binary: bool = False  # may be as large as PDF files; else as texts
    # Bytes in a charset, which whoever sends a file may name; the parser gets UTF-8 then.
    text: bool = False
    in_folders: bool = True  # whether files of a folder that is ingested are taken
    # Of zip archives, whose kind is "office": the file inside by which this one is known, whatever
    # its name says, or "file=how that begins".
    part: str = ""
    looks: bytes = b""  # of texts: a pattern of how one begins, without blanks before it


@dataclass(frozen=True)
class PictureReader:
    """Reads text from pictures and scanned pages (OCR)."""

    reader: str  # "module:class" that the process that parses a file makes without arguments
    page_cpu_s: int  # seconds of CPU that a page may take beyond the file's own
    memory_bytes: int  # memory that it may take beyond the file's own


@dataclass(frozen=True)
class TierKind:
    """A tier of the KV store. It is everywhere in effect where `is_set` says so."""

    name: str  # in metrics and logs, and what `write_tiers` may name
    # "module:function" that takes the worker's settings (`WorkerSettings`; those that the plugin
    # declares are in its `plugins`) and whether buffers are pinned, and returns a `kvstore` tier.
    # It is called in the worker.
    make: str
    is_set: Callable[[Any], bool]  # whether settings (`Settings`) name such a tier
    first_read_s: float  # about how long its first byte takes; tiers are asked fastest first
    bytes_per_s: float  # about how fast it is read; both are measured from its first read on
    # As which of the API's sources tokens from it are told: "ssd", "redis" or "s3".
    shown_as: str = "redis"


@dataclass(frozen=True)
class Adapters:
    """Reads LoRA adapters."""

    # "module:function" that takes a folder and returns what the adapter is, or a `FolderFault`
    # (service/worker/model/folder_checks.py); it loads nothing.
    examine: str
    # "module:function" that gives a decoder the adapter of a name and folder, and returns by how
    # much its logits differ from transformers', and by how much they move; it may raise
    # ModelRefused.
    add: str


@dataclass(frozen=True)
class Tables:
    """Tables of a plugin: in a file of the data folder, or in PostgreSQL beside the gateways'
    own."""

    file: str  # its name in the data folder, where there is no PostgreSQL
    # "module:name" of a `kvstitch.retriever.sql.revisions.Schema`; names of tables must be unique.
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
    """What a plugin adds to one gateway process: routes, middleware, and work beside requests."""

    routers: Sequence[Any] = ()  # FastAPI routers
    # ASGI classes with their arguments, inside authentication and around routes: they see every
    # request with its sender, and may answer in place of the route.
    middleware: Sequence[tuple[Any, Mapping[str, Any]]] = ()
    # By the path of a route whose clients do not read errors as the API writes them: what makes
    # status and body of a KvstitchError and the request's headers. Such a route says by itself in
    # `responses` which errors it has.
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
