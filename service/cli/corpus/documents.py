"""`kvstitch documents`: what is stored, pins, collections, and getting rid of it with a receipt."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any
from urllib.parse import quote

from service.cli.corpus.fields import parse_pairs
from service.cli.http import Refused, checked, client, pages
from service.cli.output import console, emit, moment, plain, table


def listing(given: argparse.Namespace) -> int:
    """Documents of a collection by doc_id."""
    limit = None if given.all else given.limit
    with client(given) as http:
        found = list(
            pages(http, "/admin/documents", "documents", limit, collection=given.collection)
        )
    if given.json:
        emit(found)
        return 0
    if not found:
        print("no documents")
        return 0
    numbers = ("characters", "chunks", "tokens")
    shown = table("document", "title", *numbers, "pinned", "updated", "metadata", numbers=numbers)
    for one in found:
        shown.add_row(
            plain(one["doc_id"]),
            plain(one["title"]),
            *(str(one[name]) for name in ("num_chars", "num_chunks", "num_tokens")),
            "yes" if one["pinned"] else "",
            moment(one["updated"]),
            plain(_metadata(one)),
        )
    console().print(shown)
    if len(found) == limit:
        print(f"the first {limit}; --limit or --all shows more", file=sys.stderr)
    return 0


def show(given: argparse.Namespace) -> int:
    """One document; with --text all of its text."""
    with client(given) as http:
        one = checked(http.get(_path("documents", given.doc_id), params=_query(given)))
    if given.json:
        emit(one)
        return 0
    if given.text:
        print(plain(one["text"]))
        return 0
    shown = table("field", "value")
    for name, value in one.items():
        if name in ("created", "updated"):
            value = moment(value)
        elif name == "text":
            value = value if len(value) <= 400 else f"{value[:400]}… (--text shows all)"
        elif name == "metadata":
            value = json.dumps(value, ensure_ascii=False)
        shown.add_row(name, plain(value))
    console().print(shown)
    return 0


def delete(given: argparse.Namespace) -> int:
    """Delete by id, by filter, or a whole collection, and show the receipt. 1 if ids were given
    that are not there."""
    chosen = [bool(given.doc_id), given.filter is not None, given.all]
    if sum(chosen) != 1:
        raise Refused("say what to delete: either DOC_ID…, --filter, or --all of a collection")
    where = parse_pairs(given.filter, "--filter")
    if given.filter is not None and not where:
        raise Refused("--filter is empty: --all deletes all documents of a collection")
    collection = given.collection or "default"
    if not given.doc_id and not given.yes:
        _confirm(collection, where)
    with client(given) as http:
        if given.all:
            reply = http.delete(_path("collections", collection))
        else:
            asked = {"doc_ids": given.doc_id} if given.doc_id else {"filter": where}
            reply = http.post("/admin/deletions", json={"collection": collection, **asked})
        receipt = checked(reply)
    _show_receipt(receipt, as_json=given.json)
    missing = len(set(given.doc_id)) - receipt["documents"]
    if given.doc_id and missing > 0:
        raise Refused(f"{missing} of {len(set(given.doc_id))} documents were not there")
    return 0


def receipt(given: argparse.Namespace) -> int:
    """A deletion's receipt, and whether anything is still owed."""
    with client(given) as http:
        found = checked(http.get(_path("receipts", given.receipt_id)))
    _show_receipt(found, as_json=given.json)
    return 0


def pin(given: argparse.Namespace) -> int:
    return _pin(given, pinned=True)


def unpin(given: argparse.Namespace) -> int:
    return _pin(given, pinned=False)


def collections(given: argparse.Namespace) -> int:
    """Collections with their documents, chunks and tokens."""
    with client(given) as http:
        found = checked(http.get("/admin/collections"))["collections"]
    if given.json:
        emit(found)
        return 0
    numbers = ("documents", "chunks", "tokens")
    shown = table("collection", *numbers, numbers=numbers)
    for one in found:
        shown.add_row(plain(one["collection"]), *(str(one[name]) for name in numbers))
    console().print(shown)
    return 0


def _pin(given: argparse.Namespace, *, pinned: bool) -> int:
    done = []
    with client(given) as http:
        for doc_id in given.doc_id:
            method = "PUT" if pinned else "DELETE"
            reply = http.request(method, _path("pins", doc_id), params=_query(given))
            done.append(checked(reply))
            if not given.json:
                word = "is kept stored" if pinned else "may be evicted"
                print(plain(f"{doc_id}: its KV {word}"))
    if given.json:
        emit(done)
    return 0


def _show_receipt(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit(found)
        return
    copies = ", ".join(f"{n} {tier}" for tier, n in sorted(found["kv"].items())) or "none"
    shown = table("receipt", found["receipt_id"])
    shown.add_row("state", found["state"])
    shown.add_row("collection", plain(found["collection"]))
    shown.add_row("documents", str(found["documents"]))
    shown.add_row("chunks", str(found["chunks"]))
    shown.add_row("copies of KV", copies)
    shown.add_row("still owed", f"{found['owed_chunks']} chunks")
    shown.add_row("not reached", ", ".join(found["unreached"]) or "-")
    shown.add_row("began", moment(found["created"]))
    shown.add_row("completed", moment(found["completed"]) if found["completed"] else "-")
    console().print(shown)
    if found["state"] == "owed":
        print(
            "text and vectors are gone; the KV goes as soon as worker and tiers are back: "
            f"kvstitch documents receipt {found['receipt_id']}",
            file=sys.stderr,
        )


def _confirm(collection: str, where: dict[str, Any]) -> None:
    """Raises Refused unless somebody at a terminal agrees."""
    what = f"documents where {json.dumps(where)}" if where else "all documents"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused(f"this deletes {what} of collection {collection}: add --yes if that is meant")
    print(plain(f"Delete {what} of collection {collection}? [y/N] "), end="", file=sys.stderr)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("nothing was deleted")


def _path(route: str, name: str) -> str:
    """Raises Refused for a name whose path would lead to another route."""
    if any(part in (".", "..") for part in name.split("/")):
        raise Refused(f"{name} cannot be named in a URL: use `documents delete --filter` or --all")
    return f"/admin/{route}/{quote(name, safe='/')}"


def _query(given: argparse.Namespace) -> dict[str, str]:
    return {"collection": given.collection} if given.collection else {}


def _metadata(one: dict[str, Any]) -> str:
    """Without the outline, which is for citations and long."""
    return json.dumps({k: v for k, v in one["metadata"].items() if k != "outline"})[:200]
