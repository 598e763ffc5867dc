"""The command line: `kvstitch serve | ingest | ask | status | keys`. Reads arguments only.

`serve` is the service, `keys` works on its data folder; the others speak HTTP to one that runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from service import __version__
from service.errors import KvstitchError

DEFAULT_URL = "http://127.0.0.1:8000"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors are one readable line on stderr."""
    given = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = given.command
    try:
        return command(given)
    except KvstitchError as error:
        print(f"kvstitch: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvstitch", description="RAG serving from stitched KV caches"
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _serve(commands.add_parser("serve", help="run the service"))
    _ingest(commands.add_parser("ingest", help="put documents into a running service"))
    _ask(commands.add_parser("ask", help="ask a running service"))
    _status(commands.add_parser("status", help="show how a running service is"))
    _keys(commands.add_parser("keys", help="make, list and revoke API keys"))
    return parser


def _serve(parser: argparse.ArgumentParser) -> None:
    from service.cli.serve import run

    parser.description = "Run the service. Without options: the demo model on loopback."
    parser.epilog = "Every setting is also an environment variable, e.g. KVSTITCH_DATA_DIR."
    add = parser.add_argument
    add("--model", help="model folder or Hugging Face id (default: the demo model)")
    add("--data-dir", help="where documents, jobs and KV are kept")
    add("--redis", dest="redis_url", help="shared KV tier, e.g. redis://127.0.0.1:6379/0")
    add("--redis-ttl", dest="redis_ttl_s", type=int, help="seconds; 0: until Redis evicts")
    add("--host", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=int, help="port to listen on (default: 8000)")
    add("--codec", choices=("int2", "int4", "int8", "raw"), help="how KV is stored")
    add("--dtype", choices=("auto", "float32", "float16", "bfloat16"))
    add("--device", help="auto, cpu, cuda or cuda:N")
    add("--memory-tier-mib", type=int, help="KV in memory; 0: none")
    add("--ssd-tier-gib", type=float, help="KV on disk; 0: none")
    add("--threads", type=int, help="CPU threads of the worker")
    add("--embedder", help="sentence-embedding model folder (default: all-MiniLM-L6-v2)")
    add("--chunk-tokens", type=int, help="tokens per chunk (default: the model folder's)")
    add("--top-k", type=int, help="passages per answer (default: the model folder's)")
    add("--prefix-mode", help="what a chunk sees when it is precomputed")
    add("--max-running", type=int, help="sequences decoded together")
    parser.set_defaults(command=run)


def _ingest(parser: argparse.ArgumentParser) -> None:
    from service.cli.ingest import run

    parser.add_argument("paths", nargs="+", metavar="PATH", help=".txt, .md, .jsonl, or a folder")
    parser.add_argument("--batch", type=int, default=200, help="documents per call")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for the KV")
    _url(parser)
    parser.set_defaults(command=run)


def _ask(parser: argparse.ArgumentParser) -> None:
    from service.cli.ask import run

    add = parser.add_argument
    add("question", metavar="QUESTION")
    add("--method", default="a3", help="fusion method (default: a3)")
    add("--ratio", type=float, help="share of the prompt to recompute, where the method has it")
    add("--top-k", type=int, help="passages to answer from")
    add("--document", action="append", metavar="DOC_ID", help="answer from this document only")
    add("--max-tokens", type=int)
    add("--json", action="store_true", help="print the whole result as JSON")
    _url(parser)
    parser.set_defaults(command=run)


def _status(parser: argparse.ArgumentParser) -> None:
    from service.cli.status import run

    parser.add_argument("--json", action="store_true", help="print the status as JSON")
    _url(parser)
    parser.set_defaults(command=run)


def _keys(parser: argparse.ArgumentParser) -> None:
    from service.cli import keys
    from service.gateway.key_text import SCOPES

    parser.description = "Works on the data folder itself, also while a service runs from it."
    commands = parser.add_subparsers(required=True, metavar="ACTION")
    create = commands.add_parser("create", help="make a key; it is shown once")
    add = create.add_argument
    add("--tenant", default="", help="whose documents it sees (default: the unnamed tenant's)")
    add("--name", default="", help="a word for people")
    add("--scope", action="append", choices=SCOPES, help="may be repeated (default: all)")
    add("--expires-days", type=float, help="default: never")
    add("--max-documents", type=int, help="documents the tenant may have when this key adds some")
    add("--max-bytes", type=int, help="bytes of text, likewise")
    add("--requests-per-minute", type=int)
    add("--tokens-per-minute", type=int, help="of prompts and answers")
    create.set_defaults(command=keys.create)
    listing = commands.add_parser("list", help="show all keys, without their secrets")
    listing.set_defaults(command=keys.show)
    revoke = commands.add_parser("revoke", help="refuse a key from now on")
    revoke.add_argument("key_id", metavar="KEY_ID")
    revoke.set_defaults(command=keys.revoke)
    for command in (create, listing, revoke):
        command.add_argument("--data-dir", help="the service's data folder")
        command.add_argument("--json", action="store_true", help="print JSON")


def _url(parser: argparse.ArgumentParser) -> None:
    url = os.environ.get("KVSTITCH_URL", DEFAULT_URL)
    parser.add_argument("--url", default=url, help=f"the service (default: {url})")
