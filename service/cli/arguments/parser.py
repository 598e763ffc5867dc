"""The parser of all commands."""

from __future__ import annotations

import argparse
import os
from functools import partial

from service import __version__
from service.cli import completion
from service.cli.arguments.bulk import add_bulk
from service.cli.arguments.cluster import add_cluster
from service.cli.arguments.common import DEFAULT_URL
from service.cli.arguments.preparing import add_keys, add_migrate, add_model, add_tune
from service.cli.arguments.serving import add_doctor, add_serve, add_worker
from service.cli.arguments.using import (
    add_ask,
    add_documents,
    add_ingest,
    add_jobs,
    add_status,
)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="kvstitch",
        description="RAG serving from stitched KV caches",
        epilog="Exit codes: 0 done, 1 an error or a document that failed, 2 wrong arguments, "
        "3 the service cannot be served.",
    )
    made.add_argument("--version", action="version", version=__version__)
    url = os.environ.get("KVSTITCH_URL", DEFAULT_URL)
    made.set_defaults(url=url, api_key=None, json=False)
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    add_serve(commands.add_parser("serve", help="run the service"))
    add_worker(commands.add_parser("worker", help="run a worker that gateways share"))
    add_ingest(commands.add_parser("ingest", help="put documents into a running service"))
    add_ask(commands.add_parser("ask", help="ask a running service"))
    add_bulk(commands.add_parser("bulk", help="very many documents into a fleet's tiers, on Ray"))
    add_jobs(commands.add_parser("jobs", help="what became of accepted documents"))
    add_documents(commands.add_parser("documents", help="what is stored: look, pin, delete"))
    add_keys(commands.add_parser("keys", help="make, list and revoke API keys"))
    add_migrate(commands.add_parser("migrate", help="copy a data folder to PostgreSQL"))
    add_status(commands.add_parser("status", help="show how a running service is"))
    add_model(commands.add_parser("model", help="models with names: list, fetch, path"))
    add_cluster(commands.add_parser("cluster", help="workers on several machines, with Ray"))
    add_tune(commands.add_parser("tune", help="measure which settings suit a model and documents"))
    add_doctor(commands.add_parser("doctor", help="look for what is wrong, and say what to do"))
    _completion(commands.add_parser("completion", help="complete commands in a shell"), made)
    return made


def _completion(parser: argparse.ArgumentParser, whole: argparse.ArgumentParser) -> None:
    parser.description = "Print a script that completes commands, options and their values."
    parser.epilog = 'For bash: eval "$(kvstitch completion bash)"; zsh: source <(kvstitch ' \
        "completion zsh); fish: kvstitch completion fish | source."  # fmt: skip
    parser.add_argument("shell", choices=tuple(completion.SCRIPTS), metavar="SHELL", help="bash, "
                        "zsh or fish")  # fmt: skip
    parser.set_defaults(command=partial(completion.run, parser=whole))
