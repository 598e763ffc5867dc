"""`kvstitch ingest`: sends documents, and shows a progress bar until their KV is stored.

    files ── batches ── POST with a key made from their content ── jobs ── polled until they end

An interrupted ingest can be repeated: for a batch whose job is still open the service answers with
that job. A batch whose job has ended is sent again, which changes nothing that is stored already.
"""

from __future__ import annotations

import argparse

from service.cli.corpus import watch
from service.cli.corpus.files import count, read
from service.cli.corpus.folder_scan import SUFFIXES, scan
from service.cli.corpus.ingest_run import Ingest
from service.cli.corpus.web.web_documents import fetch_all
from service.cli.name_value import parse_pairs
from service.cli.service_client import CommandError, WrongArgument, client


def run(args: argparse.Namespace) -> int:
    """Ingest all documents below the given paths; 1 if any of them is not stored."""
    metadata = parse_pairs(args.metadata, "--metadata")
    if args.watch:
        return watch.run(args, metadata)
    web = args.urls is not None or args.sitemap is not None
    if not args.paths and not web:
        raise WrongArgument("say what to ingest: PATH…, --urls FILE or --sitemap URL")
    found = scan(args.paths)
    ingest = Ingest(args, metadata, total=count(found.sources) + len(found.failed))
    for file in found.skipped:
        ingest.skip(file)
    for document in found.failed:
        ingest.fail(document)
    if not found.sources and not found.failed and not web:
        raise CommandError(
            f"no documents: {', '.join(args.paths)} hold no {', '.join(SUFFIXES)} files"
        )
    with client(args) as http, ingest.bar:
        ingest.send_all(http, read(found.sources, metadata))
        if web:
            ingest.send_all(http, fetch_all(args))
        if not args.no_wait:
            try:
                ingest.watch(http)
            except KeyboardInterrupt:
                ingest.say("the jobs go on without this command: `kvstitch jobs` shows them")
                raise
    return ingest.finish()
