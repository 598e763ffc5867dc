"""The arguments of what talks to a service: `ingest`, `ask`, `jobs`, `documents`, `status`."""

from __future__ import annotations

import argparse

from service.cli import status
from service.cli.arguments.common import add_action, add_client_options, positive, seconds
from service.cli.asking import ask
from service.cli.corpus import documents, ingest, jobs
from service.cli.corpus.folder_scan import SUFFIXES

JOB_STATES = ("queued", "running", "succeeded", "failed", "cancelled", "dead")


def add_ingest(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Ingest files, folders and patterns. A document is called by its path below the folder "
        "given; every line of .jsonl is a document of its own."
    )
    parser.epilog = "An ingest that was cut off can be given again: nothing is done twice."
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help=f"{', '.join(SUFFIXES)}, a folder, or a pattern "
        "such as 'docs/**/*.pdf'")  # fmt: skip
    add("--collection", help="put them there (default: default)")
    add("--metadata", action="append", metavar="NAME=VALUE", help="of all of them; or a JSON "
        "object; may be repeated")  # fmt: skip
    add("--batch", type=positive, default=200, help="documents per call (default: 200)")
    add("--no-wait", action="store_true", help="print the jobs and do not wait for the KV")
    add("--urls", metavar="FILE", help="fetch these: a URL per line")
    add("--sitemap", metavar="URL", help="fetch the pages of a sitemap")
    add("--allow-host", action="append", metavar="HOST", help="with --urls, --sitemap: fetch from "
        "there (a sitemap's own host is allowed); may be repeated")  # fmt: skip
    add("--max-urls", type=positive, default=1000, help="pages to fetch (default: 1000)")
    add("--allow-private-addresses", action="store_true", help="fetch also from loopback, private "
        "and link-local addresses")  # fmt: skip
    add("--watch", action="store_true", help="of one folder: go on, and ingest what is new or "
        "changed")  # fmt: skip
    add("--delete-removed", action="store_true", help="with --watch: delete the documents of files "
        "that are removed meanwhile")  # fmt: skip
    add("--interval", type=seconds, default=2.0, metavar="SECONDS", help="with --watch: between "
        "two looks at the folder (default: 2)")  # fmt: skip
    add_client_options(parser)
    parser.set_defaults(command=ingest.run)


def add_ask(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("question", metavar="QUESTION")
    add("--method", help="fusion method (default: the service's); auto: see docs/tune.md")
    add("--profile", choices=("fast", "balanced", "exact"), help="instead of a method: compute "
        "no row anew, the service's default, full prefill")  # fmt: skip
    add("--ratio", type=float, help="share of the prompt to recompute, where the method has it")
    add("--top-k", type=int, help="passages to answer from")
    add("--collection", help="search there (default: default)")
    add("--document", action="append", metavar="DOC_ID", help="answer from this document only")
    add("--filter", action="append", metavar="NAME=VALUE", help="only documents with this "
        "metadata; or a JSON object such as '{\"year\": {\"gte\": 2020}}'")  # fmt: skip
    add("--retrieval", choices=("dense", "sparse", "hybrid"), help="by meaning, words, or both")
    add("--quality", type=float, metavar="SHARE", help="with --method auto: the cheapest that was "
        "measured to agree with full prefill that often, such as 0.95")  # fmt: skip
    add("--cold", choices=("in_context", "as_stored"), help="how chunks that are not stored are "
        "computed: with the prompt, or alone, so that later answers are the same")  # fmt: skip
    add("--adapter", help="the LoRA adapter that answers (default: the model itself)")
    add("--no-prefix-cache", dest="prefix_cache", action="store_const", const=False,
        help="compute the whole prompt, even if one like it was answered before")  # fmt: skip
    add("--max-tokens", type=int)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--explain", action="store_true", help="a dry run: what would be loaded and "
                     "computed, and the expected TTFT")  # fmt: skip
    how.add_argument("--compare", nargs="+", metavar="METHOD", help="the same question under "
                     "these methods (NAME or NAME:RATIO) and full prefill")  # fmt: skip
    how.add_argument("--stream", action="store_true", help="with --json: every event as a line")
    add_client_options(parser)
    parser.set_defaults(command=ask.run)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=jobs.listing, limit=20, state=None, watch=False)
    add_client_options(parser)
    actions = parser.add_subparsers(metavar="ACTION")
    listing = add_action(actions, "list", jobs.listing, "jobs, newest first (also without ACTION)")
    listing.add_argument("--limit", type=positive, default=20, help="default: 20")
    listing.add_argument("--state", choices=JOB_STATES)
    listing.add_argument("--watch", action="store_true", help="until none of them is open")
    show = add_action(actions, "show", jobs.show, "one job with its errors; exit code 1: it failed")
    show.add_argument("job_id", metavar="JOB_ID")
    show.add_argument("--watch", action="store_true", help="until it has ended")
    cancel = add_action(actions, "cancel", jobs.cancel, "leave what is not done of a job")
    cancel.add_argument("job_id", metavar="JOB_ID")


def add_documents(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=documents.listing, limit=100, all=False, collection=None)
    add_client_options(parser)
    actions = parser.add_subparsers(metavar="ACTION")
    listing = add_action(actions, "list", documents.listing, "documents (also without ACTION)")
    listing.add_argument("--limit", type=positive, default=100, help="default: 100")
    listing.add_argument("--all", action="store_true")
    show = add_action(actions, "show", documents.show, "one document")
    show.add_argument("doc_id", metavar="DOC_ID")
    show.add_argument("--text", action="store_true", help="its whole text and nothing else")
    delete = add_action(
        actions, "delete", documents.delete, "remove text, vectors and KV everywhere"
    )
    delete.add_argument("doc_id", metavar="DOC_ID", nargs="*")
    delete.add_argument("--filter", action="append", metavar="NAME=VALUE", help="or JSON")
    delete.add_argument("--all", action="store_true", help="the whole collection")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    receipt = add_action(
        actions, "receipt", documents.receipt, "a deletion's receipt, as it is now"
    )
    receipt.add_argument("receipt_id", metavar="RECEIPT_ID")
    pin = add_action(actions, "pin", documents.pin, "keep documents' KV stored")
    pin.add_argument("doc_id", metavar="DOC_ID", nargs="+")
    unpin = add_action(actions, "unpin", documents.unpin, "let it be evicted like any other")
    unpin.add_argument("doc_id", metavar="DOC_ID", nargs="+")
    for action in (listing, show, delete, pin, unpin):
        action.add_argument("--collection", help="default: default")
    add_action(actions, "collections", documents.collections, "collections that have documents")


def add_status(parser: argparse.ArgumentParser) -> None:
    add_client_options(parser)
    parser.set_defaults(command=status.run)
