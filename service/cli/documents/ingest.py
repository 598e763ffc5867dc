"""`kvstitch ingest`: sends documents, and shows a progress bar until their KV is stored."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from service.cli.documents import watch
from service.cli.documents.sending import Ingest
from service.cli.documents.sources import Read, SourceFile, count, read, scan, wanted_suffixes
from service.cli.options import (
    CommandError,
    add_client_options,
    client,
    parse_pairs,
    positive,
    seconds,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Ingest files, folders and patterns. A document is called by its path below the folder "
        "given; every line of .jsonl is a document of its own."
    )
    parser.epilog = "An ingest that was cut off can be given again: nothing is done twice."
    add = parser.add_argument
    suffixes = ", ".join(wanted_suffixes())
    add("paths", nargs="+", metavar="PATH", help=f"{suffixes}, a folder, or a pattern such as "
        "'docs/**/*.pdf'")  # fmt: skip
    add_document_options(parser)
    add("--watch", action="store_true", help="of one folder: go on, and ingest what is new or "
        "changed")  # fmt: skip
    add("--delete-removed", action="store_true", help="with --watch: delete the documents of files "
        "that are removed meanwhile")  # fmt: skip
    add("--interval", type=seconds, default=2.0, metavar="SECONDS", help="with --watch: between "
        "two looks at the folder (default: 2)")  # fmt: skip
    parser.set_defaults(command=run)


def add_document_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be said of documents that are sent, and of the service that gets them."""
    add = parser.add_argument
    add("--collection", help="put them there (default: default)")
    add("--metadata", action="append", metavar="NAME=VALUE", help="of all of them; or a JSON "
        "object; may be repeated")  # fmt: skip
    add("--readers", metavar="GROUP,GROUP", default="", help="groups that may read them (default: "
        "all of the tenant)")  # fmt: skip
    add("--batch", type=positive, default=200, help="documents per call (default: 200)")
    add("--no-wait", action="store_true", help="print the jobs and do not wait for the KV")
    add_client_options(parser)


def run(args: argparse.Namespace) -> int:
    """Ingest all documents below the given paths; 1 if any of them is not stored."""
    metadata = parse_pairs(args.metadata, "--metadata")
    if args.watch:
        return watch.run(args, metadata)
    found = scan(args.paths)
    ingest = Ingest(args, metadata, total=count(found.sources) + len(found.failed))
    for file in found.skipped:
        ingest.skip(file)
    for document in found.failed:
        ingest.fail(document)
    if not found.sources and not found.failed:
        raise CommandError(
            f"no documents: {', '.join(args.paths)} hold no {', '.join(wanted_suffixes())} files"
        )
    return send(args, ingest, read(found.sources, metadata), found.sources)


def send(
    args: argparse.Namespace,
    ingest: Ingest,
    documents: Iterable[Read],
    sources: Sequence[SourceFile] = (),
) -> int:
    """Send documents, of these files where they are files, and wait; 1 if any is not stored."""
    with client(args) as service, ingest.bar:
        if sources:
            ingest.foretell(service, sources)
        ingest.send_all(service, documents)
        if not args.no_wait:
            try:
                ingest.watch(service)
            except KeyboardInterrupt:
                ingest.say("the jobs go on without this command: `kvstitch jobs` shows them")
                raise
    return ingest.finish()
