"""`kvstitch bulk`: very many documents into a fleet's catalog and KV tiers, by workers on Ray."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvstitch.service.cli.options import (
    WrongArgument,
    add_options_of_plugins,
    add_setting_options,
    parse_pairs,
    positive,
    settings_of,
)
from kvstitch.service.cli.output import console, emit, emit_line, plain, size, table, time_left
from kvstitch.service.models import prepare_model
from kvstitch.service.plugins import hooks
from kvstitch.service.shared import resources

if TYPE_CHECKING:
    from kvstitch_ray.bulk.records import Progress
    from kvstitch_ray.bulk.run import Outcome

SHOWN_ERRORS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Ingest a folder, a file of lines or an S3 prefix into the gateways' PostgreSQL, and store "
        "its KV in the tiers that they share, by workers on Ray. Give the gateways' settings."
    )
    parser.epilog = "Stopped half-way, the same command goes on: nothing is stored twice."
    add = parser.add_argument
    add("--workers", type=positive, default=1, help="worker processes, each with the model, in "
        "all of the Ray cluster (default: 1)")  # fmt: skip
    add("--gpus-per-worker", type=float, default=0.0, metavar="N", help="default: 0")
    add("--cpus-per-worker", type=float, default=1.0, metavar="N", help="default: 1")
    add("--ray-address", default="", metavar="ADDRESS", help="of the cluster, auto or host:port "
        "(default: RAY_ADDRESS, else one on this machine)")  # fmt: skip
    add("--collection", default="default", help="put them there (default: default)")
    add("--tenant", default="", help="whose they are (default: the unnamed tenant's)")
    add("--metadata", action="append", metavar="NAME=VALUE", help="of all; or a JSON object; may "
        "be repeated")  # fmt: skip
    add("--range-documents", type=positive, default=256, metavar="N", help="documents that are "
        "claimed, and tried again, together (default: 256)")  # fmt: skip
    add("--again", action="store_true", help="look at everything again, e.g. when a tier was lost")
    add("--dry-run", action="store_true", help="count documents, chunks, tokens and bytes")
    parser.set_defaults(command=run)
    _common(parser, default=None)
    actions = parser.add_subparsers(metavar="ACTION")
    made = actions.add_parser("status", help="how far runs are, also while they go on")
    made.set_defaults(command=status)
    _common(made, default=argparse.SUPPRESS)


def _common(parser: argparse.ArgumentParser, *, default: Any) -> None:
    """Add what the command and its action take. The action keeps what it is not given."""
    for name, help in (
        ("--input", "s3://bucket/prefix, a folder, or a .jsonl file; all nodes must see it there"),
        ("--input-endpoint", "URL of the S3 server of the input (default: that of the tier)"),
    ):
        parser.add_argument(name, help=help, default=default)
    helps = {
        "--model": "as for `serve` (default: the demo model)",
        "--model-cache": "where folders made of .gguf files are kept",
        "--database": "the gateways' PostgreSQL",
        "--redis": "the gateways' Redis tier",
        "--write-tiers": "shared tiers that get KV (default: all)",
        "--codec": "how KV is stored: raw, int8, int4 or int2",
        "--dtype": "auto, float32, float16 or bfloat16",
        "--quantize": "off, int8 or int4",
        "--device": "auto, cpu, cuda or cuda:N",
        "--embedder": "sentence-embedding model folder (default: all-MiniLM-L6-v2)",
        "--prefix-mode": "as the gateways' (default: the model folder's, else primer)",
        "--calibration": "the gateways' calibration.json (default: the model folder's)",
        "--redis-ttl": "seconds; 0: until Redis evicts",
        "--threads": "CPU threads of a worker (default: --cpus-per-worker)",
        "--chunk-tokens": "tokens per chunk (default: the model folder's)",
    }
    add_setting_options(parser, helps, default=default)
    add_options_of_plugins(parser, default=default)
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="JSON on "
                        "stdout and nothing else: a line per event")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Ingest the whole input; 1 if a document or a range failed."""
    resources.prepare_torch()
    if args.input is None:
        raise WrongArgument("say what to ingest: --input s3://bucket/prefix, DIR or FILE.jsonl")
    settings = _settings(args)
    if args.dry_run:
        return _dry_run(args, settings)
    # Not by other commands: it takes seconds.
    from kvstitch_ray.bulk.records import Order
    from kvstitch_ray.bulk.run import ingest

    order = Order(
        input=args.input,
        input_endpoint=_endpoint(args, settings),
        input_region=settings.s3_region,
        tenant=args.tenant,
        collection=args.collection,
        metadata=parse_pairs(args.metadata, "--metadata"),
        range_documents=args.range_documents,
        again=args.again,
        workers=args.workers,
        gpus=args.gpus_per_worker,
        cpus=args.cpus_per_worker,
        ray_address=args.ray_address,
    )
    details = {"input": order.input, "collection": order.collection}
    hooks().operator_acted(settings=settings, action="bulk", tenant=order.tenant, details=details)
    try:
        outcome = ingest(settings, order, show=_show_json if args.json else _show)
    except KeyboardInterrupt:
        print("kvstitch: stopped; the same command goes on from here", file=sys.stderr)
        raise
    _report(args, outcome)
    return 0 if outcome.good else 1


def status(args: argparse.Namespace) -> int:
    """Print how far runs are; 1 if anything of them failed."""
    from kvstitch_ray.bulk.run import progress_of_runs

    found = progress_of_runs(_settings(args), args.input)
    if args.json:
        emit([{**each.as_json(), "errors": errors} for each, errors in found])
    elif not found:
        print("no bulk was started with this database")
    else:
        shown = table(
            "run", "input", "collection", "ranges", "documents", "failed", "chunks", "stored",
            "chunks/s", "left", numbers=("documents", "failed", "chunks", "stored", "chunks/s"),
        )  # fmt: skip
        for each, _ in found:
            ranges = ", ".join(f"{n} {state}" for state, n in sorted(each.ranges.items()))
            rate = "-" if each.chunks_per_s is None or each.ended else f"{each.chunks_per_s:.1f}"
            shown.add_row(
                each.run.run_id, plain(each.run.input), plain(each.run.collection), ranges,
                f"{each.done}/{each.documents}", str(each.failed), str(each.chunks),
                str(each.stored), rate, "" if each.ended else time_left(each.eta_s) or "-",
            )  # fmt: skip
        console().print(shown)
        for _, errors in found:
            _print_errors(errors)
    return 1 if any(each.failed or each.ranges.get("failed") for each, _ in found) else 0


def _settings(args: argparse.Namespace) -> Any:
    # `workers` are Ray's actors; each has one process, which is all that its settings know of.
    settings = settings_of(args, without={"workers"})
    cpus = getattr(args, "cpus_per_worker", 1.0)
    threads = settings.threads or max(1, int(cpus))
    return settings.model_copy(update={"workers": 1, "threads": threads})


def _endpoint(args: argparse.Namespace, settings: Any) -> str:
    given: str | None = args.input_endpoint
    return settings.s3_endpoint if given is None else given


def _dry_run(args: argparse.Namespace, settings: Any) -> int:
    from kvstitch_ray.bulk.dry_run import estimate
    from kvstitch_ray.bulk.sources import source

    found = estimate(
        source(args.input, endpoint=_endpoint(args, settings), region=settings.s3_region),
        settings,
        prepare_model(settings),
        collection=args.collection,
        range_documents=args.range_documents,
    )
    errors = [{"doc_id": doc_id, "message": message} for doc_id, message in found.errors]
    if args.json:
        emit({**asdict(found), "errors": errors})
    else:
        print(
            f"{found.documents} documents in {found.chunks} chunks of {found.tokens} tokens; "
            f"{size(found.tier_bytes)} in each tier; {found.failed} cannot be read"
        )
        _print_errors(errors)
    return 1 if found.failed else 0


def _show(progress: Progress) -> None:
    print(f"kvstitch: {_line(progress)}", file=sys.stderr, flush=True)


def _show_json(progress: Progress) -> None:
    emit_line({"event": "progress", **progress.as_json()})


def _line(progress: Progress) -> str:
    parts = [f"{progress.done} of {progress.documents} documents, {progress.chunks} chunks"]
    if progress.chunks_per_s is not None and progress.tokens_per_s is not None:
        parts.append(f"{progress.chunks_per_s:.1f} chunks/s, {progress.tokens_per_s:.0f} tokens/s")
    parts.append(f"{progress.failed} failed")
    parts += [left] if (left := time_left(progress.eta_s)) else []
    return "; ".join(parts)


def _report(args: argparse.Namespace, outcome: Outcome) -> None:
    progress = outcome.progress
    rate = outcome.chunks / outcome.seconds if outcome.seconds else 0.0
    if args.json:
        result: dict[str, Any] = {
            "event": "ended", **progress.as_json(), "errors": outcome.errors,
            "warnings": outcome.warnings,
            "seconds": round(outcome.seconds, 3), "own_chunks": outcome.chunks,
            "ingest_cpu_s": round(outcome.ingest_cpu_s, 3),
            "worker_cpu_s": round(outcome.worker_cpu_s, 3),
        }  # fmt: skip
        emit_line(result)
        return
    print(
        f"{progress.done} documents in {progress.chunks} chunks, {progress.failed} failed: "
        f"{progress.stored} chunks stored ({size(progress.bytes)}), {progress.present} present"
    )
    print(f"{outcome.chunks} chunks by this command in {outcome.seconds:.1f} s, {rate:.1f}/s")
    if given_up := progress.ranges.get("failed"):
        print(f"{given_up} ranges were given up; the same command tries them again")
    if progress.warned:
        print(f"{progress.warned} documents are stored, but not all of them")
        _print_errors(outcome.warnings)
    _print_errors(outcome.errors)


def _print_errors(errors: list[dict[str, str]]) -> None:
    for error in errors[:SHOWN_ERRORS]:
        name = error["doc_id"] or "a range"
        print(f"  {plain(name)}: {plain(error['message'])}", file=sys.stderr)
    if len(errors) > SHOWN_ERRORS:
        print(f"  and {len(errors) - SHOWN_ERRORS} more: --json has them", file=sys.stderr)
