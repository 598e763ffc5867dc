"""Where the input is: a folder or a file that all nodes see at the same path, or an S3 prefix.

A source knows names, versions and bytes; what is in them is not its concern.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import urlsplit

from kvstitch.service.cli.documents.sources import open_below
from kvstitch.service.errors import InvalidRequest, InvalidSetting
from kvstitch.service.gateway.documents.parsing.file_kinds import suffixes_in_folders

LINES = (".jsonl", ".ndjson")
BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class InputFile:
    """A file of the input."""

    name: str
    size: int
    version: str

    @property
    def lines(self) -> bool:
        """Whether each of its lines is a document."""
        return PurePosixPath(self.name).suffix.lower() in LINES


class Source(Protocol):
    """The input. Every method may raise InvalidRequest, which says what cannot be read."""

    def files(self) -> Iterator[InputFile]:
        """Yield all files that can be read as documents, except hidden and empty ones."""
        ...

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file."""
        ...

    def blocks(self, name: str) -> Iterator[bytes]:
        """Yield a whole file, a block at a time."""
        ...


def is_wanted(name: str) -> bool:
    """Return whether a file can be read as documents, by its path below the input."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and path.suffix.lower() in (*suffixes_in_folders(), *LINES)


class LocalSource:
    """A folder, or one file of lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._root = path if path.is_dir() else path.parent

    def files(self) -> Iterator[InputFile]:
        if not self._path.is_dir():
            yield self._file(self._path)
            return
        for folder, folders, names in os.walk(self._path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                path = Path(folder, name)
                below = path.relative_to(self._root).as_posix()
                inside = path.resolve().is_relative_to(self._root.resolve())  # or a link out of it
                if is_wanted(below) and inside and path.is_file() and path.stat().st_size:
                    yield self._file(path)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            with open_below(self._root, self._root / name) as file:
                file.seek(start)
                return file.read(-1 if length is None else length)
        except OSError as error:
            raise InvalidRequest(f"{name} cannot be read: {error.strerror}") from error

    def blocks(self, name: str) -> Iterator[bytes]:
        try:
            with open_below(self._root, self._root / name) as file:
                while block := file.read(BLOCK_BYTES):
                    yield block
        except OSError as error:
            raise InvalidRequest(f"{name} cannot be read: {error.strerror}") from error

    def _file(self, path: Path) -> InputFile:
        try:
            stat = path.stat()
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
        name = path.relative_to(self._root).as_posix()
        return InputFile(name, stat.st_size, f"{stat.st_size}-{stat.st_mtime_ns}")


class S3Source:
    """What is below a prefix of a bucket, or one object of lines."""

    def __init__(self, url: str, *, endpoint: str = "", region: str = "") -> None:
        try:
            import obstore
            from obstore.store import S3Store
        except ImportError as error:
            raise InvalidSetting(
                "input from S3 needs obstore: pip install 'kvstitch[s3]'"
            ) from error
        parts = urlsplit(url)
        if not parts.netloc:
            raise InvalidSetting(f"--input {url!r} names no bucket: give s3://bucket/prefix")
        key = parts.path.strip("/")
        self._only = key.rpartition("/")[2] if key.lower().endswith(LINES) else None
        prefix = key.rpartition("/")[0] if self._only is not None else key
        settings: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        settings |= {"region": region} if region else {}
        self._url = url
        self._obstore: Any = obstore
        self._store: Any = S3Store(
            parts.netloc,
            prefix=prefix or None,
            virtual_hosted_style_request=False,
            client_options={"allow_http": endpoint.startswith("http://")},
            **settings,
        )

    def files(self) -> Iterator[InputFile]:
        if self._only is not None:
            yield self._file(self._try(lambda: self._obstore.head(self._store, self._only)))
            return
        pages = iter(self._try(lambda: self._obstore.list(self._store, chunk_size=1000)))
        while page := self._try(lambda: next(pages, None)):
            for one in page:
                if is_wanted(one["path"]) and one["size"]:
                    yield self._file(one)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if length is None:
            return bytes(self._try(lambda: self._obstore.get(self._store, name).bytes()))
        got = self._try(
            lambda: self._obstore.get_range(self._store, name, start=start, length=length)
        )
        return bytes(got)

    def blocks(self, name: str) -> Iterator[bytes]:
        got = self._try(lambda: self._obstore.get(self._store, name))
        stream = iter(got.stream(min_chunk_size=BLOCK_BYTES))
        while (block := self._try(lambda: next(stream, None))) is not None:
            yield bytes(block)

    def _file(self, meta: Any) -> InputFile:
        version = str(meta["e_tag"] or f"{meta['size']}-{meta['last_modified'].isoformat()}")
        return InputFile(str(meta["path"]), int(meta["size"]), version)

    def _try(self, work: Any) -> Any:
        try:
            return work()
        except (FileNotFoundError, self._obstore.exceptions.BaseError) as error:
            text = str(error).partition("\n\nDebug source")[0][:300]
            raise InvalidRequest(f"{self._url} cannot be read: {text}") from error


def source(text: str, *, endpoint: str = "", region: str = "") -> Source:
    """Return the source that `--input` names."""
    if "://" in text:
        if not text.startswith("s3://"):
            raise InvalidSetting(f"--input {text!r}: give s3://bucket/prefix, a folder or a file")
        return S3Source(text, endpoint=endpoint, region=region)
    path = Path(text)
    if not path.exists():
        raise InvalidSetting(f"--input {text}: there is no such file or folder")
    if not path.is_dir() and path.suffix.lower() not in LINES:
        raise InvalidSetting(
            f"--input {text} is no folder and no {' or '.join(LINES)} file: for single files there "
            "is `kvstitch ingest`"
        )
    return LocalSource(path)


def normal(text: str) -> str:
    """Return an absolute path, or a URL without a last slash: the same for the same input."""
    return text.rstrip("/") if "://" in text else str(Path(text).resolve())
