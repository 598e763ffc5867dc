"""`kvstitch documents`: lists, shows, pins and deletes stored documents."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any
from urllib.parse import quote

from service.cli.name_value import parse_pairs
from service.cli.output import console, emit, moment, plain, table
from service.cli.service_client import CommandError, WrongArgument, checked, client, pages


def listing(args: argparse.Namespace) -> int:
    """List a collection's documents by doc_id."""
    limit = None if args.all else args.limit
    with client(args) as http:
        found = list(
            pages(http, "/admin/documents", "documents", limit, collection=args.collection)
        )
    if args.json:
        emit(found)
        return 0
    if not found:
        known = args.collection is None
        print(
            "no documents"
            if known
            else plain(
                f"there is no collection {args.collection}: `kvstitch documents collections` "
                "lists them"
            )
        )
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
            plain(json.dumps(one["metadata"])[:200]),
        )
    console().print(shown)
    if len(found) == limit:
        print(f"the first {limit}; --limit or --all shows more", file=sys.stderr)
    return 0


def show(args: argparse.Namespace) -> int:
    """Show one document; with --text only its text."""
    with client(args) as http:
        one = checked(http.get(_path("documents", args.doc_id), params=_query(args)))
    if args.json:
        emit(one)
        return 0
    if args.text:
        print(plain(one["text"]))
        return 0
    shown = table("field", "value")
    for name, value in one.items():
        if name in ("created", "updated"):
            value = moment(value)
        elif name == "text":
            value = value if len(value) <= 400 else f"{value[:400]}… (--text shows all)"
        elif name in ("metadata", "marks"):
            value = json.dumps(value, ensure_ascii=False)
        shown.add_row(name, plain(value))
    console().print(shown)
    return 0


def delete(args: argparse.Namespace) -> int:
    """Delete by id, by filter, or a whole collection, and show the receipt.

    Raises:
        CommandError: Some of the ids were not there; the others are deleted.
    """
    chosen = [bool(args.doc_id), args.filter is not None, args.all]
    if sum(chosen) != 1:
        raise WrongArgument(
            "say what to delete: either DOC_ID…, --filter, or --all of a collection"
        )
    where = parse_pairs(args.filter, "--filter")
    if args.filter is not None and not where:
        raise WrongArgument("--filter is empty: --all deletes all documents of a collection")
    collection = args.collection or "default"
    if not args.doc_id and not args.yes:
        _confirm(collection, where)
    with client(args) as http:
        if args.all:
            reply = http.delete(_path("collections", collection))
        else:
            asked = {"doc_ids": args.doc_id} if args.doc_id else {"filter": where}
            reply = http.post("/admin/deletions", json={"collection": collection, **asked})
        receipt = checked(reply)
    _show_receipt(receipt, as_json=args.json)
    missing = len(set(args.doc_id)) - receipt["documents"]
    if args.doc_id and missing > 0:
        raise CommandError(f"{missing} of {len(set(args.doc_id))} documents were not there")
    return 0


def receipt(args: argparse.Namespace) -> int:
    """Show a deletion's receipt, and whether KV is still to be deleted."""
    with client(args) as http:
        found = checked(http.get(_path("receipts", args.receipt_id)))
    _show_receipt(found, as_json=args.json)
    return 0


def pin(args: argparse.Namespace) -> int:
    return _pin(args, pinned=True)


def unpin(args: argparse.Namespace) -> int:
    return _pin(args, pinned=False)


def collections(args: argparse.Namespace) -> int:
    """List collections with their documents, chunks and tokens."""
    with client(args) as http:
        found = checked(http.get("/admin/collections"))["collections"]
    if args.json:
        emit(found)
        return 0
    numbers = ("documents", "chunks", "tokens")
    shown = table("collection", *numbers, numbers=numbers)
    for one in found:
        shown.add_row(plain(one["collection"]), *(str(one[name]) for name in numbers))
    console().print(shown)
    return 0


def _pin(args: argparse.Namespace, *, pinned: bool) -> int:
    done = []
    with client(args) as http:
        for doc_id in args.doc_id:
            method = "PUT" if pinned else "DELETE"
            reply = http.request(method, _path("pins", doc_id), params=_query(args))
            done.append(checked(reply))
            if not args.json:
                word = "is kept stored" if pinned else "may be evicted"
                print(plain(f"{doc_id}: its KV {word}"))
    if args.json:
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
    """Ask at the terminal.

    Raises:
        CommandError: The answer is not yes, or there is no terminal.
    """
    what = f"documents where {json.dumps(where)}" if where else "all documents"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise WrongArgument(
            f"this deletes {what} of collection {collection}: add --yes if that is meant"
        )
    print(plain(f"Delete {what} of collection {collection}? [y/N] "), end="", file=sys.stderr)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was deleted")


def _path(route: str, name: str) -> str:
    """The path for a name.

    Raises:
        CommandError: The path would lead to another route.
    """
    if any(part in (".", "..") for part in name.split("/")):
        raise WrongArgument(
            f"{name} cannot be named in a URL: use `documents delete --filter` or --all"
        )
    return f"/admin/{route}/{quote(name, safe='/')}"


def _query(args: argparse.Namespace) -> dict[str, str]:
    return {"collection": args.collection} if args.collection else {}
