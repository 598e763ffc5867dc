"""`kvstitch ingest`: sends documents, and shows a progress bar until their KV is stored."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kvstitch.client import Client, errors
from kvstitch.service.cli.documents import watch
from kvstitch.service.cli.documents.folder_sync import FolderSync
from kvstitch.service.cli.documents.sending import Ingest
from kvstitch.service.cli.documents.sources import (
    Read,
    SourceFile,
    count,
    read,
    scan,
    wanted_suffixes,
)
from kvstitch.service.cli.options import (
    CommandError,
    WrongArgument,
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
    add("--prune", "--delete-removed", action="store_true", dest="prune", help="of folders: delete "
        "what this command stored of them and is not there any more, and rename what has another "
        "name")  # fmt: skip
    add("--prune-all", action="store_true", help="also where nothing is left of a folder")
    add("--hidden", action="store_true", help="of folders: also hidden files and folders")
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
    add("--writers", metavar="GROUP,GROUP", default="", help="groups that may change them; *: all "
        "that may read them (default: who may now, of new ones the key's groups)")  # fmt: skip
    add("--source", metavar="NAME", help="what the folder is called, for --prune (default: made of "
        "machine, user and path)")  # fmt: skip
    add("--batch", type=positive, default=200, help="documents per call (default: 200)")
    add("--no-wait", action="store_true", help="print the jobs and do not wait for the KV")
    add_client_options(parser)


def run(args: argparse.Namespace) -> int:
    """Ingest all documents below the given paths; 1 if any of them is not stored."""
    metadata = parse_pairs(args.metadata, "--metadata")
    args.prune = args.prune or args.prune_all
    if args.watch:
        return watch.run(args, metadata)
    folders = [Path(path) for path in args.paths if Path(path).is_dir()]
    if args.prune and (len(folders) < len(args.paths) or args.no_wait):
        raise WrongArgument("--prune takes folders, and no --no-wait")
    if args.source and len(args.paths) > 1:
        raise WrongArgument("--source names one folder: give them one by one")
    with client(args) as service:
        renamed = sum(_rename(args, service, folder) for folder in folders if args.prune)
    found = scan(args.paths, hidden=args.hidden)
    ingest = Ingest(args, metadata, total=count(found.sources) + len(found.failed))
    for file in found.skipped:
        ingest.skip(file)
    for document in found.failed:
        ingest.fail(document)
    if not found.sources and not found.failed:
        raise CommandError(
            f"no documents: {', '.join(args.paths)} hold no {', '.join(wanted_suffixes())} files"
        )
    if renamed:
        ingest.changes["renamed"] = renamed

    def compare(service: Client) -> None:
        for folder in folders:
            _compare(args, service, ingest, folder)

    documents = read(found.sources, metadata)
    return send(args, ingest, documents, found.sources, after=compare)


def _rename(args: argparse.Namespace, service: Client, folder: Path) -> int:
    """Rename what has another name now, unless the folder seems to be away; return how many."""
    sync, found = FolderSync(args, service, folder), scan([str(folder)], hidden=args.hidden)
    sync.check(found)
    return len(sync.rename(found))


def _compare(args: argparse.Namespace, service: Client, ingest: Ingest, folder: Path) -> None:
    """Delete what is not in a folder any more; without --prune count it."""
    try:
        sync = FolderSync(args, service, folder)
        gone = sync.gone(check=args.prune)
    except (CommandError, errors.Forbidden, errors.NotFound):
        if args.prune:
            raise
        return  # the key may not look, or the service is of an earlier release
    owed = sync.delete(gone) if args.prune else 0
    for name, number in (("pruned" if args.prune else "gone", len(gone)), ("owed_chunks", owed)):
        if number:
            ingest.changes[name] = ingest.changes.get(name, 0) + number


def send(
    args: argparse.Namespace,
    ingest: Ingest,
    documents: Iterable[Read],
    sources: Sequence[SourceFile] = (),
    after: Callable[[Client], None] = lambda service: None,
) -> int:
    """Send documents, of these files where they are files, wait, and call `after`; 1 if any is not
    stored."""
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
            after(service)
    return ingest.finish()
