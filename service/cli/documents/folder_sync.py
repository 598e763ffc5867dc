"""Keeps what is stored of a folder as the folder is: `kvstitch ingest --prune`.

    stored of this source ── in the folder: stays
         ├── not there, but a new file has its bytes: renamed, so that its KV stays
         └── not there: deleted, once all that is there is stored

The service keeps with each document the name of the source that it came from last: of a folder, a
machine, a user and a collection. What others have put in, or from elsewhere, is left alone.
"""

import argparse
import contextlib
import hashlib
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from kvstitch.client import Client, Receipt, errors
from kvstitch.service.cli.documents.sources import (
    DocumentToSend,
    Found,
    SourceFile,
    name_of,
    read,
    scan,
)
from kvstitch.service.cli.options import CommandError, patiently

DELETED_AT_ONCE = 1000  # documents in one call
KV_S = 60.0  # how long to wait until the KV of deleted documents is gone, too
MACHINE_ID = Path("/etc/machine-id")

Name = tuple[str, str]  # collection, doc_id


def source_name(args: argparse.Namespace, root: Path) -> str:
    """Return what the service calls this folder of this machine and user, in this collection."""
    where = getattr(args, "source", None) or [
        socket.gethostname(),
        MACHINE_ID.read_text("ascii").strip() if MACHINE_ID.is_file() else "",
        os.getuid(),
        str(root.resolve()),
    ]
    named = json.dumps([where, args.collection or "default"])
    return hashlib.sha256(named.encode()).hexdigest()[:32]


class FolderSync:
    """What this command has stored of one folder, and what of it is not there any more."""

    def __init__(self, args: argparse.Namespace, client: Client, root: Path) -> None:
        self._root, self._client = root, client
        self._source = source_name(args, root)
        self._collection = args.collection or "default"
        self._hidden: bool = getattr(args, "hidden", False)
        self._anyway: bool = getattr(args, "prune_all", False)
        self.stored = self._list()

    def _list(self) -> dict[Name, str]:
        found = patiently(lambda: self._client.source_documents(self._source))
        return {(each.collection, each.doc_id): each.sha256 for each in found}

    def unchanged(self, sources: Iterable[SourceFile]) -> set[Path]:
        """Return those of the files whose bytes are stored."""
        return {
            source.path
            for source in sources
            if (digest := self.stored.get((self._collection, source.doc_id)))
            and source.root == self._root
            and digest == _sha256(source)
        }

    def check(self, found: Found) -> None:
        """Refuse to prune where the folder rather seems to be away than to have changed. Raises
        CommandError: nothing of what was stored is there, or nothing of a folder in it that had
        half; or it is not known which lines a file has."""
        gone = self._gone(found)
        gone -= {name for name, _ in self._moved(found, gone)}
        if self._anyway or not gone:
            return
        anyway = "is it mounted? Nothing is removed; --prune-all removes them"
        if not found.sources or len(gone) == len(self.stored) > 1:
            raise CommandError(
                f"{self._root} has none of the {len(self.stored)} documents that are stored of it: "
                f"{anyway}"
            )
        below = Counter(parent for _, doc_id in gone for parent in Path(doc_id).parents)
        for here in (
            self._root / folder for folder, n in below.items() if 2 * n > len(self.stored)
        ):
            if here.is_dir() and not any(here.iterdir()):
                raise CommandError(
                    f"{here} is empty, and half of what is stored was there: {anyway}"
                )

    def rename(self, found: Found) -> list[tuple[Name, Name]]:
        """Rename documents whose files have another name now; returns the old and new names."""
        moved = self._moved(found, self._gone(found))
        for (collection, doc_id), (_, new_id) in moved:
            with contextlib.suppress(errors.Conflict):  # it was stored from elsewhere
                self._client.rename_document(doc_id, new_id, collection=collection)
                self.stored[collection, new_id] = self.stored.pop((collection, doc_id))
        return moved

    def gone(self, *, check: bool) -> list[Name]:
        """Return what is stored now, and not in the folder, which is looked at afterwards."""
        self.stored, found = self._list(), scan([str(self._root)], hidden=self._hidden)
        if check:
            self.check(found)
        return sorted(self._gone(found))

    def delete(self, names: Collection[Name]) -> int:
        """Delete documents; returns how many chunks' KV may still be there after a while."""
        receipts = list(delete_named(self._client, names))
        give_up_at = time.monotonic() + KV_S
        while any(each.state == "owed" for each in receipts) and time.monotonic() < give_up_at:
            time.sleep(0.5)
            receipts = [self._client.get_receipt(each.receipt_id) for each in receipts]
        return sum(each.owed_chunks for each in receipts)

    def _gone(self, found: Found) -> set[Name]:
        """Return what is not among all that was found: what cannot be ingested now is there."""
        names = {name for source in found.sources for name in self._names(source)}
        there = [Path(each.path) for each in found.skipped]
        if lines := [path for path in there if SourceFile(path, "").lines]:
            raise CommandError(f"{lines[0]} is empty: it is not known which lines are gone")
        unread = [each.doc_id for each in found.failed]  # names, and paths of folders
        folders = [Path(one) for one in unread if Path(one).is_relative_to(self._root)]
        if self._root in folders:
            raise CommandError(f"{self._root} cannot be read: nothing is removed")
        hidden = tuple(f"{name_of(folder, self._root)}/" for folder in folders)
        there = [path for path in there if path.is_relative_to(self._root)]
        names |= {(self._collection, name_of(path, self._root)) for path in there}
        names |= {(self._collection, name) for name in unread}
        return {n for n in self.stored if n not in names and not n[1].startswith(hidden)}

    def _names(self, source: SourceFile) -> set[Name]:
        if not source.lines:
            return {(self._collection, source.doc_id)}
        names = set()
        for document in read([source], {}):
            if not isinstance(document, DocumentToSend):
                raise CommandError(
                    f"{source.path} cannot be read whole, so it is not known which lines are gone: "
                    "mend it, or ingest without --prune"
                )
            names.add((document.collection or self._collection, document.doc_id))
        return names

    def _moved(self, found: Found, gone: Collection[Name]) -> list[tuple[Name, Name]]:
        """Return (old, new name) of documents that are gone and files that are new with their
        bytes."""
        of_bytes = {self.stored[name]: name for name in sorted(gone, reverse=True)}
        out = []
        for source in found.sources if of_bytes else ():
            new = self._collection, source.doc_id
            if source.lines or new in self.stored:
                continue
            digest = _sha256(source)
            if of_bytes.get(digest, ("",))[0] == self._collection:
                out.append((of_bytes.pop(digest), new))
        return out


def delete_named(client: Client, names: Collection[Name]) -> Iterator[Receipt]:
    """Delete documents, some in one call each; yields the receipts."""
    for collection in sorted({collection for collection, _ in names}):
        doc_ids = sorted(doc_id for own, doc_id in names if own == collection)
        for start in range(0, len(doc_ids), DELETED_AT_ONCE):
            part = doc_ids[start : start + DELETED_AT_ONCE]
            yield client.delete_documents(part, collection=collection)


def _sha256(source: SourceFile) -> str:
    """Return the digest of a file, of one that cannot be read that of nothing that is stored."""
    try:
        with source.open() as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
