"""Finds the files of folders, paths and patterns, and reads them into documents to be sent.

Of every file that is left out it is said why. A document that cannot be read fails alone.
"""

import errno
import glob
import json
import os
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import Any

from kvstitch.service.cli.options import WrongArgument
from kvstitch.service.gateway.documents.parsing.file_kinds import (
    media_type_of_suffix,
    suffixes_in_folders,
)

ROW = "application/x-ndjson"
LINES = (".jsonl", ".ndjson")
OTHER_KIND = "of another kind"
EMPTY = "empty"
HIDDEN = "in a hidden folder"
HIDDEN_FILE = "a hidden file"
OUTSIDE = "a link out of the folder"
COMPANION = "left beside a file by another program"
# Of macOS, Office, LibreOffice, Emacs: attributes and locks of the file that they are called after.
_COMPANIONS = ("._", "~$", ".~lock.", ".#")
_ROW_FIELDS = ("title", "metadata", "collection", "readers", "writers")
# Characters that change when they are in a file's name in a form.
_UNSENDABLE = '"\\'


@dataclass(frozen=True)
class SourceFile:
    """A file, and its document's name; a file of lines names its documents itself."""

    path: Path
    doc_id: str
    root: Path = Path()  # the folder from which its name goes
    named: bool = False  # whether it is one that somebody has named, which may be a link

    @property
    def lines(self) -> bool:
        return self.path.suffix.lower() in LINES

    def open(self) -> BufferedReader:
        """Open it, as `open_below` does if it was found in a folder. Raises OSError."""
        return self.path.open("rb") if self.named else open_below(self.root, self.path)


def open_below(folder: Path, path: Path) -> BufferedReader:
    """Open a regular file that, links followed, is below a folder. Raises OSError for any other,
    also for one that took its place since it was looked at: on the way no link is followed."""
    top, real = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    if not real.is_relative_to(top):
        raise OSError(errno.EXDEV, OUTSIDE)
    *above, name = real.relative_to(top).parts
    at = os.open(top, os.O_DIRECTORY)
    try:
        for part in above:
            below = os.open(part, os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        # Without O_NONBLOCK a pipe would be waited for.
        opened = os.open(name, os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)
    file = os.fdopen(opened, "rb")
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file")
    return file


@dataclass(frozen=True)
class DocumentToSend:
    """A document that can be sent: a file's bytes, or a line of JSON (ROW), which may name its
    collection."""

    doc_id: str
    media_type: str
    content: bytes
    collection: str = ""
    root: Path = Path()


@dataclass(frozen=True)
class SkippedFile:
    """A file that is no document, and why; `reason` is one of few, for counting."""

    path: str
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class UnsendableDocument:
    """A document that cannot be read, or that the service has refused."""

    doc_id: str
    message: str
    reason: str  # the message in a few words that others share


Read = DocumentToSend | UnsendableDocument | SkippedFile


@dataclass
class Found:
    """Every file below what was given is in one of these."""

    sources: list[SourceFile] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    failed: list[UnsendableDocument] = field(default_factory=list)
    hidden: bool = False  # whether hidden files and folders are taken
    _taken: dict[Path, SourceFile] = field(default_factory=dict)

    def skip(self, path: Path, reason: str, detail: str = "") -> None:
        self.skipped.append(SkippedFile(str(path), reason, detail))

    def take(self, path: Path, root: Path, *, named: bool = False) -> None:
        """Take a file, unless it is empty or was taken under another name, or is a link to one that
        is not below the folder and was not `named` itself: whoever may write there may not read
        all that this command may."""
        source = SourceFile(path, name_of(path, root), root, named)
        try:
            real, size = path.resolve(), path.stat().st_size
            outside = not real.is_relative_to(root.resolve())
        except OSError as error:
            self.failed.append(unreadable(source.doc_id, path, error))
            return
        if outside and not named:
            self.skip(path, OUTSIDE, str(real))
            return
        first = self._taken.setdefault(real, source)
        if first is not source:
            self.skip(path, "the same file as another", str(first.path))
        elif not size and path.is_file():
            self.skip(path, EMPTY)
        else:
            self.sources.append(source)


def wanted_suffixes() -> tuple[str, ...]:
    return (*suffixes_in_folders(), *LINES)


def scan(paths: Sequence[str], *, hidden: bool = False) -> Found:
    """Find files by paths, folders and patterns.

    A doc_id is the path relative to the folder, or to the fixed part of the pattern. Files that are
    named themselves are taken whatever they are called, `hidden` ones where that is asked for.
    Raises WrongArgument: a path does not exist, or a pattern matches no file.
    """
    found = Found(hidden=hidden)
    for text in paths:
        path = Path(text)
        if path.is_dir():
            _walk(path, found)
        elif path.exists():
            found.take(path, path.parent, named=True)
        elif glob.has_magic(text):
            _match(text, found)
        else:
            raise WrongArgument(f"{text} cannot be read: there is no such file or folder")
    return found


def _walk(root: Path, found: Found) -> None:
    """Sort everything below a folder. Links to folders are not followed: they may lead back."""

    def unlisted(error: OSError) -> None:
        folder = str(error.filename)
        found.failed.append(unreadable(folder, Path(folder), error))

    for folder, below, names in os.walk(root, onerror=unlisted):
        for name in sorted(names):
            _sort(Path(folder, name), root, found)
        for name in sorted(below):
            path = Path(folder, name)
            if path.is_symlink():
                _sort(path, root, found)
            elif _is_hidden(path, found):  # of version control and editors; its files count
                for inside, _, hidden in os.walk(path):
                    for file in sorted(hidden):
                        found.skip(Path(inside, file), HIDDEN, str(path))
        below[:] = sorted(name for name in below if not _is_hidden(Path(name), found))


def _is_hidden(path: Path, found: Found) -> bool:
    return path.name.startswith(".") and not found.hidden


def _sort(path: Path, root: Path, found: Found) -> None:
    name = path.relative_to(root).as_posix()
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        found.skip(path, "a link to nothing")
        return
    except OSError as error:
        found.failed.append(unreadable(name, path, error))
        return
    if stat.S_ISDIR(mode):
        found.skip(path, "a link to a folder")
    elif not stat.S_ISREG(mode):
        found.skip(path, "no regular file")
    elif path.name.startswith(_COMPANIONS):
        found.skip(path, COMPANION)
    elif _is_hidden(path, found):
        found.skip(path, HIDDEN_FILE)
    elif path.suffix.lower() not in wanted_suffixes():
        found.skip(path, OTHER_KIND, path.suffix)
    else:
        found.take(path, root)


def _match(pattern: str, found: Found) -> None:
    fixed: list[str] = []
    for part in Path(pattern).parts:
        if glob.has_magic(part):
            break
        fixed.append(part)
    files = [Path(f) for f in sorted(glob.glob(pattern, recursive=True)) if Path(f).is_file()]
    if not files:
        raise WrongArgument(f"{pattern} matches no file")
    for file in files:
        if not file.name.startswith(_COMPANIONS):
            found.take(file, Path(*fixed))


def name_of(path: Path, root: Path) -> str:
    """Return what a file's document is called, in the form in which people type it (NFC)."""
    return unicodedata.normalize("NFC", path.relative_to(root).as_posix())


def unreadable(doc_id: str, path: Path, error: OSError) -> UnsendableDocument:
    reason = f"cannot be read: {error.strerror}"
    return UnsendableDocument(doc_id, f"{path} {reason}", reason)


def count(sources: Sequence[SourceFile]) -> int:
    """Return how many documents the files hold; lines are counted, not parsed."""
    total = 0
    for source in sources:
        lines = 0
        if source.lines:
            try:
                with source.open() as file:
                    lines = sum(1 for line in file if line.strip())
            except OSError:
                pass
        total += lines or 1
    return total


def read(sources: Sequence[SourceFile], metadata: dict[str, Any]) -> Iterator[Read]:
    """Yield every document of files from `scan`, and a file of lines that has none. Documents from
    lines get `metadata`; their own takes precedence. A document whose doc_id came before in the
    same collection is unsendable, because it would silently replace the earlier one."""
    seen: dict[tuple[str, str], Path] = {}
    for source in sources:
        for document in _lines(source, metadata) if source.lines else [_file(source)]:
            if isinstance(document, DocumentToSend):
                document = replace(document, root=source.root)
                name = (document.collection, document.doc_id)
                if name in seen:
                    yield UnsendableDocument(
                        document.doc_id,
                        f"{source.path}: this doc_id is already that of {seen[name]}; ingest them "
                        "as one folder, or rename one",
                        "its doc_id is that of another",
                    )
                    continue
                seen[name] = source.path
            yield document


def _file(source: SourceFile) -> DocumentToSend | UnsendableDocument:
    path, doc_id = source.path, source.doc_id
    try:
        doc_id.encode()
        wrong = not doc_id.isprintable() or any(char in doc_id for char in _UNSENDABLE)
        reason = "its name has quotes or control characters" if wrong else ""
    except UnicodeEncodeError:
        reason = "its name is not valid UTF-8"
    if reason:
        return UnsendableDocument(doc_id, f"{path}: {reason}; rename it", reason)
    try:
        with source.open() as file:
            content = file.read()
    except OSError as error:
        return unreadable(doc_id, path, error)
    media_type = media_type_of_suffix().get(path.suffix.lower(), "text/plain")
    return DocumentToSend(doc_id, media_type, content)


def _lines(source: SourceFile, metadata: dict[str, Any]) -> Iterator[Read]:
    some = False
    try:
        with source.open() as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    some = True
                    yield _line(f"{source.path}, line {number}", line, metadata)
    except OSError as error:
        yield unreadable(source.doc_id, source.path, error)
        return
    if not some:
        yield SkippedFile(str(source.path), EMPTY)


def _line(place: str, line: bytes, metadata: dict[str, Any]) -> DocumentToSend | UnsendableDocument:
    try:
        args = json.loads(line.decode("utf-8-sig"))
        row = {"doc_id": args["doc_id"], "text": args["text"]}
        row |= {name: args[name] for name in _ROW_FIELDS if args.get(name) is not None}
        if metadata:
            row["metadata"] = {**metadata, **row.get("metadata", {})}
        content = json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return UnsendableDocument(
            place,
            f"{place}: expected an object with doc_id and text ({error!r})",
            "a line that is no object with doc_id and text",
        )
    return DocumentToSend(str(row["doc_id"]), ROW, content, str(row.get("collection", "")))
