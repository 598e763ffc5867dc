"""`kvstitch documents`: lists, shows, pins and deletes stored documents."""

import argparse
import json
import sys
from functools import partial
from typing import Any

from kvstitch.client import Receipt
from kvstitch.service.cli.options import (
    CommandError,
    WrongArgument,
    add_action,
    add_client_options,
    client,
    parse_pairs,
    positive,
)
from kvstitch.service.cli.output import console, emit, moment, plain, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=listing, limit=100, all=False, collection=None)
    add_client_options(parser)
    actions = parser.add_subparsers(metavar="ACTION")
    made = add_action(actions, "list", listing, "documents (also without ACTION)")
    made.add_argument("--limit", type=positive, default=100, help="default: 100")
    made.add_argument("--all", action="store_true")
    for name, command, many, help in (
        ("show", show, None, "one document"),
        ("text", text, None, "what is stored of a document, and what is not"),
        ("delete", delete, "*", "remove text, vectors and KV everywhere"),
        ("pin", partial(pin, pinned=True), "+", "keep documents' KV stored"),
        ("unpin", partial(pin, pinned=False), "+", "let it be evicted like any other"),
    ):
        made = add_action(actions, name, command, help)
        made.add_argument("doc_id", metavar="DOC_ID", nargs=many)
    for made in actions.choices.values():
        made.add_argument("--collection", help="default: default")
    add = actions.choices["show"].add_argument
    add("--text", action="store_true", help="its whole text and nothing else")
    add = actions.choices["text"].add_argument
    add("--chunks", action="store_true", help="a line before each chunk")
    add = actions.choices["delete"].add_argument
    add("--filter", action="append", metavar="NAME=VALUE", help="or JSON")
    add("--all", action="store_true", help="the whole collection")
    add("--yes", action="store_true", help="do not ask")
    made = add_action(actions, "receipt", receipt, "a deletion's receipt, as it is now")
    made.add_argument("receipt_id", metavar="RECEIPT_ID")
    add_action(actions, "collections", collections, "collections that have documents")


def listing(args: argparse.Namespace) -> int:
    """List a collection's documents by doc_id."""
    limit = None if args.all else args.limit
    with client(args) as service:
        pages = service.list_documents(collection=args.collection, limit=limit)
        found = [one.raw for one in pages]
    if args.json:
        emit(found)
        return 0
    if not found:
        lists = "`kvstitch documents collections` lists them"
        none = "no documents" if args.collection is None else (
            f"there is no collection {args.collection}: {lists}")  # fmt: skip
        print(plain(none))
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
    with client(args) as service:
        one = service.get_document(args.doc_id, collection=args.collection).raw
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
        elif name == "warnings":
            value = "\n".join(warning["message"] for warning in value or []) or "-"
        elif name in ("metadata", "marks"):
            value = json.dumps(value, ensure_ascii=False)
        shown.add_row(name, plain(value))
    console().print(shown)
    return 0


def text(args: argparse.Namespace) -> int:
    """Print what is stored of a document, and on stderr what of its file is not in it."""
    with client(args) as service:
        found = service.get_text(args.doc_id, collection=args.collection)
    if args.json:
        emit(found.raw)
        return 0
    for warning in found.warnings:
        console(stderr=True).print(plain(f"warning: {warning.message}"), soft_wrap=True)
    if not args.chunks:
        print(plain(found.text))
        return 0
    for number, chunk in enumerate(found.chunks, 1):
        place = " ".join(f"· {part}" for part in (chunk.page, chunk.heading) if part)
        print(plain(f"── chunk {number} · {chunk.tokens} tokens {place}".rstrip()))
        print(plain(found.text[chunk.start : chunk.end].rstrip()))
    return 0


def delete(args: argparse.Namespace) -> int:
    """Delete by id, by filter, or a whole collection, and show the receipt."""
    if sum([bool(args.doc_id), args.filter is not None, args.all]) != 1:
        raise WrongArgument("say what to delete: DOC_ID…, --filter, or --all of a collection")
    where = parse_pairs(args.filter, "--filter")
    if args.filter is not None and not where:
        raise WrongArgument("--filter is empty: --all deletes all documents of a collection")
    collection = args.collection or "default"
    if not args.doc_id and not args.yes:
        _confirm(collection, where)
    with client(args) as service:
        if args.all:
            receipt = service.delete_collection(collection)
        else:
            doc_ids = args.doc_id or None
            receipt = service.delete_documents(doc_ids, filter=where or None, collection=collection)
    _show_receipt(receipt, as_json=args.json)
    missing = len(set(args.doc_id)) - receipt.documents
    if args.doc_id and missing > 0:
        raise CommandError(f"{missing} of {len(set(args.doc_id))} documents were not there")
    return 0


def receipt(args: argparse.Namespace) -> int:
    """Show a deletion's receipt, and whether KV is still to be deleted."""
    with client(args) as service:
        _show_receipt(service.get_receipt(args.receipt_id), as_json=args.json)
    return 0


def collections(args: argparse.Namespace) -> int:
    """List collections with their documents, chunks and tokens."""
    with client(args) as service:
        found = service.collections()
    if args.json:
        emit([one.raw for one in found])
        return 0
    numbers = ("documents", "chunks", "tokens")
    shown = table("collection", *numbers, numbers=numbers)
    for one in found:
        shown.add_row(plain(one.collection), *map(str, (one.documents, one.chunks, one.tokens)))
    console().print(shown)
    return 0


def pin(args: argparse.Namespace, *, pinned: bool) -> int:
    done = []
    with client(args) as service:
        change = service.pin_document if pinned else service.unpin_document
        for doc_id in args.doc_id:
            done.append(change(doc_id, collection=args.collection).raw)
            if not args.json:
                word = "is kept stored" if pinned else "may be evicted"
                print(plain(f"{doc_id}: its KV {word}"))
    if args.json:
        emit(done)
    return 0


def _show_receipt(found: Receipt, *, as_json: bool) -> None:
    if as_json:
        emit(found.raw)
        return
    copies = ", ".join(f"{n} {tier}" for tier, n in sorted(found.kv.items()))
    shown = table("receipt", found.receipt_id)
    for name, value in {
        "state": found.state,
        "collection": found.collection,
        "documents": found.documents,
        "chunks": found.chunks,
        "copies of KV": copies or "none",
        "still owed": f"{found.owed_chunks} chunks",
        "not reached": ", ".join(found.unreached) or "-",
        "began": moment(found.created),
        "completed": moment(found.completed) if found.completed else "-",
    }.items():
        shown.add_row(name, plain(value))
    console().print(shown)
    if found.state == "owed":
        print(
            "text and vectors are gone; the KV goes as soon as worker and tiers are back: "
            f"kvstitch documents receipt {found.receipt_id}",
            file=sys.stderr,
        )


def _confirm(collection: str, where: dict[str, Any]) -> None:
    what = f"documents where {json.dumps(where)}" if where else "all documents"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise WrongArgument(
            f"this deletes {what} of collection {collection}: add --yes if that is meant"
        )
    print(plain(f"Delete {what} of collection {collection}? [y/N] "), end="", file=sys.stderr)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was deleted")
