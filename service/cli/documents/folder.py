"""Finds the files of folders, paths and patterns, and says of every one that is left out why."""

from __future__ import annotations

import glob
import os
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from service.cli.service_client import WrongArgument
from service.gateway.documents.parsing.file_kinds import suffixes_in_folders

LINES = (".jsonl", ".ndjson")
OTHER_KIND = "of another kind"
EMPTY = "empty"
HIDDEN = "in a hidden folder"
SAME_FILE = "the same file as another"
LINKED_FOLDER = "a link to a folder"
BROKEN_LINK = "a link to nothing"
NO_FILE = "no regular file"
COMPANION = "left beside a file by another program"
# Of macOS, Office, LibreOffice, Emacs: attributes and locks of the file that they are called after.
_COMPANIONS = ("._", "~$", ".~lock.", ".#")


def wanted_suffixes() -> tuple[str, ...]:
    return (*suffixes_in_folders(), *LINES)


@dataclass(frozen=True)
class SourceFile:
    """A file, and its document's name; a file of lines names its documents itself."""

    path: Path
    doc_id: str

    @classmethod
    def of(cls, path: Path, name: str) -> SourceFile:
        """Return a file as the document of this name, in the form in which people type it (NFC)."""
        return cls(path, unicodedata.normalize("NFC", name))

    @property
    def lines(self) -> bool:
        return self.path.suffix.lower() in LINES


@dataclass(frozen=True)
class SkippedFile:
    """A file that is no document, and why; `reason` is one of the words above."""

    path: str
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class UnsendableDocument:
    """A document that cannot be read, or that the service has refused.

    Attributes:
        doc_id: Its name.
        message: What is wrong with it, and what to do.
        reason: The same in a few words that others share, for counting.
    """

    doc_id: str
    message: str
    reason: str


@dataclass
class Found:
    """Every file below what was given is in one of these."""

    sources: list[SourceFile] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    failed: list[UnsendableDocument] = field(default_factory=list)


def scan(paths: Sequence[str]) -> Found:
    """Find files by paths, folders and patterns.

    A doc_id is the path relative to the folder, or to the fixed part of the pattern. Files that are
    named themselves are taken whatever they are called.

    Raises:
        WrongArgument: A path does not exist, or a pattern matches no file.
    """
    found = Found()
    seen: dict[Path, SourceFile] = {}
    for text in paths:
        path = Path(text)
        if path.is_dir():
            _Folder(path, found, seen).walk()
        elif path.exists() or not glob.has_magic(text):
            if not path.exists():
                raise WrongArgument(f"{text} cannot be read: there is no such file or folder")
            _take(SourceFile.of(path, path.name), found, seen)
        else:
            for source in _matching(text):
                _take(source, found, seen)
    return found


class _Folder:
    """Sorts everything below a folder. Links to folders are not followed: they may lead back."""

    def __init__(self, root: Path, found: Found, seen: dict[Path, SourceFile]) -> None:
        self._root, self._found, self._seen = root, found, seen

    def walk(self) -> None:
        folders = [self._root]
        while folders:
            folder = folders.pop()
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError as error:
                self._found.failed.append(unreadable(str(folder), folder, error))
                continue
            inside = []
            for entry in entries:
                path = Path(entry.path)
                if not entry.is_dir(follow_symlinks=False):
                    self._file(path)
                elif entry.name.startswith("."):
                    self._hidden(path)
                else:
                    inside.append(path)
            folders += reversed(inside)

    def _file(self, path: Path) -> None:
        name = path.relative_to(self._root).as_posix()
        try:
            status = path.stat()
        except FileNotFoundError:
            self._skip(path, BROKEN_LINK)
            return
        except OSError as error:
            self._found.failed.append(unreadable(name, path, error))
            return
        if stat.S_ISDIR(status.st_mode):
            self._skip(path, LINKED_FOLDER)
        elif not stat.S_ISREG(status.st_mode):
            self._skip(path, NO_FILE)
        elif path.name.startswith(_COMPANIONS):
            self._skip(path, COMPANION)
        elif path.suffix.lower() not in wanted_suffixes():
            self._skip(path, OTHER_KIND, path.suffix)
        else:
            _take(SourceFile.of(path, name), self._found, self._seen)

    def _hidden(self, folder: Path) -> None:
        """Version control and editors keep such folders; their files are counted all the same."""
        for path, _, names in os.walk(folder):
            for name in sorted(names):
                self._skip(Path(path, name), HIDDEN, str(folder))

    def _skip(self, path: Path, reason: str, detail: str = "") -> None:
        self._found.skipped.append(SkippedFile(str(path), reason, detail))


def _take(source: SourceFile, found: Found, seen: dict[Path, SourceFile]) -> None:
    """Take a file, unless it is empty or was taken under another name."""
    try:
        real, size = source.path.resolve(), source.path.stat().st_size
    except OSError as error:
        found.failed.append(unreadable(source.doc_id, source.path, error))
        return
    first = seen.setdefault(real, source)
    if first is not source:
        found.skipped.append(SkippedFile(str(source.path), SAME_FILE, str(first.path)))
    elif not size and source.path.is_file():
        found.skipped.append(SkippedFile(str(source.path), EMPTY))
    else:
        found.sources.append(source)


def unreadable(doc_id: str, path: Path, error: OSError) -> UnsendableDocument:
    return UnsendableDocument(
        doc_id, f"{path} cannot be read: {error.strerror}", f"cannot be read: {error.strerror}"
    )


def _matching(pattern: str) -> Iterator[SourceFile]:
    fixed: list[str] = []
    for part in Path(pattern).parts:
        if glob.has_magic(part):
            break
        fixed.append(part)
    root = Path(*fixed)
    files = [Path(f) for f in sorted(glob.glob(pattern, recursive=True)) if Path(f).is_file()]
    if not files:
        raise WrongArgument(f"{pattern} matches no file")
    own = (file for file in files if not file.name.startswith(_COMPANIONS))
    return (SourceFile.of(file, file.relative_to(root).as_posix()) for file in own)
