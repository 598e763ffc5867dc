"""Keeps what is stored of a folder as the folder is: `kvstitch ingest --prune`.

    stored of this source ── in the folder: stays
         ├── not there, but a new file has its bytes: renamed, so that its KV stays
         └── not there: deleted, once all that is there is stored

The service keeps with each document the name of the source that it came from last: of a folder, a
machine, a user and a collection. What others have put in, or from elsewhere, is left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from kvstitch.client import Client, Receipt, errors
from service.cli.documents.sources import (
    DocumentToSend,
    Found,
    SourceFile,
    name_of,
    read,
    scan,
)
from service.cli.options import CommandError

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


@dataclass
class _Present:
    """What is in a folder: names of documents, and of folders that could not be looked into."""

    names: set[Name]
    hidden: tuple[str, ...]
    some: bool  # a file that can be ingested

    def has(self, name: Name) -> bool:
        return name in self.names or name[1].startswith(self.hidden)


class FolderSync:
    """What this command has stored of one folder, and what of it is not there any more."""

    def __init__(self, args: argparse.Namespace, client: Client, root: Path) -> None:
        self._root, self._client = root, client
        self._source = source_name(args, root)
        self._collection = args.collection or "default"
        self._anyway: bool = args.prune_all
        self.stored = self._list()

    def _list(self) -> dict[Name, str]:
        found = self._client.source_documents(self._source)
        return {(each.collection, each.doc_id): each.sha256 for each in found}

    def check(self, found: Found) -> None:
        """Refuse to prune where the folder rather seems to be away than to have changed.

        Raises:
            CommandError: Nothing of what was stored is there, or nothing of a folder in it; or it
                is not known which lines a file has.
        """
        present = self._present(found)
        gone = {name for name in self.stored if not present.has(name)}
        gone -= {name for name, _ in self._moved(found, gone)}
        if self._anyway or not gone:
            return
        anyway = "is it mounted? Nothing was sent or removed; --prune-all removes them"
        if not present.some or len(gone) == len(self.stored) > 1:
            raise CommandError(
                f"{self._root} has none of the {len(self.stored)} documents that were ingested "
                f"from it: {anyway}"
            )
        for folder in sorted({Path(doc_id).parent for _, doc_id in gone} - {Path()}):
            here = self._root / folder
            if here.is_dir() and not any(here.iterdir()):
                raise CommandError(f"{here} is empty, and documents of it are stored: {anyway}")

    def rename(self, found: Found) -> list[tuple[Name, Name]]:
        """Rename documents whose files have another name now; returns the old and new names."""
        present = self._present(found)
        moved = self._moved(found, {name for name in self.stored if not present.has(name)})
        for (collection, doc_id), (_, new_id) in moved:
            with contextlib.suppress(errors.Conflict):  # it was stored from elsewhere
                self._client.rename_document(doc_id, new_id, collection=collection)
                self.stored[collection, new_id] = self.stored.pop((collection, doc_id))
        return moved

    def gone(self) -> list[Name]:
        """Return what is stored now, and not in the folder, which is looked at afterwards."""
        self.stored = self._list()
        present = self._present(scan([str(self._root)]))
        return sorted(name for name in self.stored if not present.has(name))

    def delete(self, names: Collection[Name]) -> int:
        """Delete documents; returns how many chunks' KV may still be there after a while."""
        receipts: list[Receipt] = []
        for collection in sorted({collection for collection, _ in names}):
            doc_ids = sorted(doc_id for own, doc_id in names if own == collection)
            for start in range(0, len(doc_ids), DELETED_AT_ONCE):
                part = doc_ids[start : start + DELETED_AT_ONCE]
                receipts.append(self._client.delete_documents(part, collection=collection))
        give_up_at = time.monotonic() + KV_S
        while any(each.state == "owed" for each in receipts) and time.monotonic() < give_up_at:
            time.sleep(0.5)
            receipts = [self._client.get_receipt(each.receipt_id) for each in receipts]
        return sum(each.owed_chunks for each in receipts)

    def _present(self, found: Found) -> _Present:
        names: set[Name] = set()
        for source in found.sources:
            names |= self._names(source)
        # They are there, whatever it is that keeps them from being ingested now.
        skipped = [Path(each.path) for each in found.skipped]
        unread = [each.doc_id for each in found.failed]
        if lines := [path for path in skipped if SourceFile(path, "").lines]:
            raise CommandError(f"{lines[0]} is empty: it is not known which lines are gone")
        there = [name_of(path, self._root) for path in skipped if path.is_relative_to(self._root)]
        hidden = [
            name_of(Path(n), self._root) for n in unread if Path(n).is_relative_to(self._root)
        ]
        if "." in hidden:
            raise CommandError(f"{self._root} cannot be read: nothing was sent or removed")
        names |= {(self._collection, name) for name in (*there, *unread)}
        return _Present(names, tuple(f"{name}/" for name in hidden), bool(found.sources))

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
            try:
                digest = hashlib.sha256(source.path.read_bytes()).hexdigest()
            except OSError:
                continue
            old = of_bytes.get(digest)
            if old is not None and old[0] == self._collection:
                out.append((of_bytes.pop(digest), new))
        return out
