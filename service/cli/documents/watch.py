"""`kvstitch ingest --watch`: keeps a folder's documents as the folder is, until it is interrupted.

    at its start ── what is gone since an earlier watch ── deleted, with --prune
    scan ── what is new or changed, and quiet since the last scan ── ingest
       └── what is gone since two scans ── deleted, with --prune

Nothing is deleted while the file is there, whatever the reason why it cannot be read. What has been
ingested is kept in memory: the first round sends everything, which changes nothing that is stored
already, and a round that fails because the service is away is made again.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from kvstitch.client import Client, errors
from kvstitch.service.cli.documents.account import sentence
from kvstitch.service.cli.documents.folder_sync import FolderSync, delete_named
from kvstitch.service.cli.documents.sending import Ingest
from kvstitch.service.cli.documents.sources import (
    DocumentToSend,
    Found,
    Read,
    SourceFile,
    UnsendableDocument,
    read,
    scan,
    unreadable,
)
from kvstitch.service.cli.options import CommandError, WrongArgument, client, message_of
from kvstitch.service.cli.output import console, emit_line, plain

Signature = tuple[int, int, int]  # modification time, size, inode
Name = tuple[str, str]  # collection, doc_id
_TEMPORARY = (409, 429, 502, 503, 504, 507)


@dataclass
class Known:
    """A file that was ingested as it was then, and its documents."""

    signature: Signature
    names: set[Name] = field(default_factory=set)
    device: int | None = None  # of its folder: another one means that something was unmounted


def run(args: argparse.Namespace, metadata: dict[str, Any]) -> NoReturn:
    """Watch a folder; ends only by an error or an interrupt."""
    if len(args.paths) != 1 or not Path(args.paths[0]).is_dir() or args.no_wait:
        raise WrongArgument("--watch takes one folder, and no --no-wait")
    watch = Watch(args, metadata)
    while True:
        watch.round()
        time.sleep(args.interval)


class Watch:
    def __init__(self, args: argparse.Namespace, metadata: dict[str, Any]) -> None:
        self._args, self._metadata = args, metadata
        self._root = Path(args.paths[0])
        self._known: dict[Path, Known] = {}
        self._seen: dict[Path, Signature] = {}  # in the scan before
        self._unread: set[object] = set()  # files that could not be read in the scan before
        self._said: set[object] = set()  # skipped and unreadable files that were named
        self._missing: set[Path] = set()  # in the scan before
        self._warned = ""
        self._first = True
        self._compared = False  # with what was stored before

    def round(self) -> None:
        try:
            found = scan([str(self._root)], hidden=self._args.hidden)
        except WrongArgument as error:
            self._warn(error.message)
            return
        seen = {s.path: sig for s in found.sources if (sig := _signature(s.path)) is not None}
        quiet = [s for s in found.sources if s.path in seen and self._is_due(s.path, seen[s.path])]
        gone = self._missing_files(found, seen)
        self._seen = seen
        try:
            with client(self._args) as service:
                sync = self._rename(service, found)
                self._ingest(service, found, quiet)
                self._compare(sync)
                for path in gone:
                    self._delete(service, path, self._known[path].names)
                    del self._known[path]
                    self._missing.discard(path)
        except errors.KvstitchError as error:
            away = isinstance(error, errors.ConnectionFailed) or error.status in _TEMPORARY
            if not away:
                raise
            self._warn(f"{message_of(error)}; it is tried again")
        else:
            self._warned = ""
            self._first = False

    def _rename(self, service: Client, found: Found) -> FolderSync | None:
        """Rename what has another name now; None if the folder seems to be away, or no key may look
        at what is stored."""
        if self._compared and not (self._args.prune and self._missing):
            return None
        try:
            sync = FolderSync(self._args, service, self._root)
            if not self._args.prune:
                return sync
            if not self._compared:
                sync.check(found)
            for old, new in sync.rename(found):
                self._known = {p: k for p, k in self._known.items() if ("", old[1]) not in k.names}
                event = {"event": "renamed", "doc_id": old[1], "new_id": new[1]}
                self._report(event, f"{old[1]}: is {new[1]} now; its KV stays")
        except CommandError as error:
            self._warn(error.message)
            return None
        except (errors.Forbidden, errors.NotFound):
            if self._args.prune:
                raise
            self._compared = True
            return None
        return sync

    def _compare(self, sync: FolderSync | None) -> None:
        """At the start: delete what an earlier watch, or ingest, has stored and is gone."""
        if sync is None or self._compared:
            return
        if gone := sync.gone(check=self._args.prune):
            doc_ids = [doc_id for _, doc_id in gone]
            if self._args.prune:
                sync.delete(gone)
            event = "deleted" if self._args.prune else "removed"
            what = "deleted" if self._args.prune else "gone; --prune deletes such documents"
            self._report(
                {"event": event, "path": str(self._root), "doc_ids": doc_ids},
                f"{self._root}: {what} ({len(gone)} documents)",
            )
        self._compared = True

    def _is_due(self, path: Path, signature: Signature) -> bool:
        """Return whether a file is new or changed, and is not being written any more."""
        known = self._known.get(path)
        if known is not None and known.signature == signature:
            return False
        return self._first or self._seen.get(path) == signature

    def _missing_files(self, found: Found, seen: dict[Path, Signature]) -> list[Path]:
        """Known files that are missing in this scan and in the one before."""
        missing = {path for path in self._known if path not in seen and _is_gone(path, self._root)}
        moved = {p for p in missing if _device(p.parent) not in (None, self._known[p].device)}
        if found.failed:  # a folder that cannot be read hides its files
            missing = set()
        elif moved:
            self._warn(f"the folder of {min(moved)} is another: is it mounted? Nothing is deleted")
            missing = set()
        elif missing and len(missing) == len(self._known) > 1:
            self._warn(f"all files of {self._root} are gone: is it mounted? Nothing is deleted")
            missing = set()
        gone = sorted(missing & self._missing)
        self._missing = missing
        return gone

    def _ingest(self, client: Client, found: Found, sources: Sequence[SourceFile]) -> None:
        hidden = [document for source in sources if (document := _unreadable(source))]
        unread = {document.doc_id for document in hidden}
        sources = [source for source in sources if source.doc_id not in unread]
        ingest = Ingest(self._args, self._metadata, total=len(sources))
        left_out: set[object] = {*found.skipped, *found.failed, *hidden}
        new = left_out - self._said
        self._said -= self._unread - left_out  # it is said again when it comes again
        self._unread = set(hidden)
        if not sources and not new:
            return
        for file in found.skipped:
            if file in new:
                ingest.skip(file)
        for document in (*found.failed, *hidden):
            if document in new:
                ingest.fail(document)
        before = {source.path: self._seen[source.path] for source in sources}
        names: dict[Path, set[Name]] = {source.path: set() for source in sources}
        whole: set[Path] = set()
        ingest.send_all(client, self._read(sources, names, whole))
        ingest.watch(client)
        result = ingest.account.result(waited=True)
        self._said |= new
        for path, signature in before.items():
            old = self._known.get(path, Known(signature)).names
            if path in whole:
                self._delete(client, path, old - names[path])
            else:
                names[path] |= old
            self._known[path] = Known(signature, names[path], _device(path.parent))
        self._report({"event": "ingested", **result}, sentence(result))

    def _read(
        self, sources: Sequence[SourceFile], names: dict[Path, set[Name]], whole: set[Path]
    ) -> Iterator[Read]:
        """Yield the documents, and note the names of each file's, and files that were read whole:
        only their names say which lines are gone."""
        for source in sources:
            whole.add(source.path)
            for document in read([source], self._metadata):
                if isinstance(document, DocumentToSend):
                    names[source.path].add((document.collection, document.doc_id))
                else:
                    whole.discard(source.path)
                yield document

    def _delete(self, client: Client, path: Path, names: set[Name]) -> None:
        """Delete documents whose file, or line, is gone, if that is wanted; say so in any case."""
        # What is a document of another file by now stays.
        names = names - {n for other, k in self._known.items() if other != path for n in k.names}
        if not names:
            return
        if self._args.prune:
            usual = self._args.collection or "default"
            list(delete_named(client, {(own or usual, doc_id) for own, doc_id in names}))
            event = word = "deleted"
        else:
            event, word = "removed", "gone; its document stays"
        doc_ids = sorted(doc_id for _, doc_id in names)
        self._report(
            {"event": event, "path": str(path), "doc_ids": doc_ids},
            f"{path}: {word} ({len(doc_ids)} documents)",
        )

    def _report(self, event: dict[str, Any], line: str) -> None:
        if self._args.json:
            emit_line(event)
        else:
            print(plain(line), flush=True)

    def _warn(self, message: str) -> None:
        """Say on stderr what the folder or the service lacks, once while it lasts."""
        if message != self._warned:
            self._warned = message
            console(stderr=True).print(plain(f"kvstitch: {message}"), soft_wrap=True)


def _signature(path: Path) -> Signature | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _is_gone(path: Path, root: Path) -> bool:
    """Return whether there is surely no such file: what cannot be seen may be there."""
    try:
        path.lstat()
        inside = path.relative_to(root).parents
        # Links to folders are not followed, so what is behind one has another name, if any.
        if any((root / folder).is_symlink() for folder in inside if folder.name):
            return True
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _device(folder: Path) -> int | None:
    """Return what a folder is on; None if it is not there."""
    try:
        return folder.stat().st_dev
    except OSError:
        return None


def _unreadable(source: SourceFile) -> UnsendableDocument | None:
    """Return why a file cannot be read now; it is tried at every round, because rights may come
    back without a change of the file."""
    try:
        source.open().close()
    except OSError as error:
        return unreadable(source.doc_id, source.path, error)
    return None
