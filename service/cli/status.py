"""`kvstitch status`: shows the state of a running service."""

import argparse
from typing import Any

from kvstitch.service.cli.options import add_client_options, client
from kvstitch.service.cli.output import console, emit, plain, size, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_client_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Print the status; 0 if the service is ready, else 1."""
    with client(args) as found:
        status = found.status()
    if args.json:
        emit(status)
    else:
        _show(status)
    return 0 if status["state"] == "ready" else 1


def _show(status: dict[str, Any]) -> None:
    out = console()
    shown = table("kvstitch", status["version"])
    state = status["state"] + (f": {status['reason']}" if status["reason"] else "")
    shown.add_row("state", plain(state))
    if (model := status["model"]) is not None:
        shown.add_row(
            "model",
            f"{model['id']} ({model['family']}, {model['layers']} layers, {model['dtype']} on "
            f"{model['device']}, context {model['max_context']})",
        )
    if (corpus := status["corpus"]) is not None:
        jobs = ", ".join(f"{n} {name}" for name, n in sorted(corpus["jobs"].items())) or "none"
        shown.add_row("corpus", f"{corpus['documents']} documents, {corpus['chunks']} chunks")
        shown.add_row("jobs", jobs)
    for sentence in status.get("advice", ()):
        shown.add_row("advice", plain(sentence))
    worker = status["worker"]
    free = "?" if worker["pool_free"] is None else f"{100 * worker['pool_free']:.0f} %"
    shown.add_row("requests", f"{status['in_flight'] or 0} in flight; KV pool {free} free")
    out.print(shown)
    if any(each.get("address") for each in status.get("workers", ())):
        workers = table("worker", "state", "running", "waiting", numbers=("running", "waiting"))
        for each in status["workers"]:
            state = "is about to end" if each["draining"] else each["reason"] or "ready"
            counts = ("" if each[n] is None else str(each[n]) for n in ("running", "waiting"))
            workers.add_row(plain(each["address"] or ""), plain(state), *counts)
        out.print(workers)
    if status["tiers"]:
        tiers = table("tier", "chunks", "used", "state", numbers=("chunks", "used"))
        for name, tier in sorted(status["tiers"].items()):
            tiers.add_row(
                name,
                f"{tier.get('entries', 0):.0f}",
                size(tier.get("used_bytes", 0)),
                "answers" if tier.get("healthy", 1) else "not answering",
            )
        out.print(tiers)
