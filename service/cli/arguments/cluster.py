"""The arguments of `kvstitch cluster`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from service.cli import cluster

# Settings of workers, as `serve` has them; those of gateways are not taken.
_SETTINGS: tuple[tuple[str, str, Callable[[str], object], str], ...] = (
    ("--model", "model", str, "as for `serve`; a folder must be there on every machine"),
    ("--lora", "lora", str, "LoRA adapters, NAME=FOLDER, by commas"),
    ("--model-cache", "model_cache", str, "where folders made of .gguf files are kept"),
    ("--data-dir", "data_dir", str, "on the workers' machines: their SSD tier"),
    ("--redis", "redis_url", str, "shared KV tier"),
    ("--s3", "s3_url", str, "cold KV tier, e.g. s3://bucket/prefix"),
    ("--s3-endpoint", "s3_endpoint", str, "URL of the S3 server; without it AWS"),
    ("--s3-region", "s3_region", str, "without it AWS_REGION, or us-east-1"),
    ("--write-tiers", "write_tiers", str, "tiers besides memory that get computed KV"),
    ("--codec", "codec", str, "how KV is stored: int2, int4, int8 or raw"),
    ("--dtype", "dtype", str, "auto, float32, float16 or bfloat16"),
    ("--quantize", "quantize", str, "int8 or int4: weights in fewer bits"),
    ("--device", "device", str, "auto, cpu or cuda"),
    ("--memory-tier-mib", "memory_tier_mib", int, "KV in memory, of each worker; 0: none"),
    ("--ssd-tier-gib", "ssd_tier_gib", float, "KV on disk, of each machine; 0: none"),
    ("--threads", "threads", int, "CPU threads of a worker (default: --cpus-per-worker)"),
    ("--max-running", "max_running", int, "sequences decoded together, by each worker"),
)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their options."""
    parser.description = (
        "Workers on several machines: detached Ray actors, each with one worker process. "
        "Gateways find them by KVSTITCH_WORKER_ADDRESSES=ray://auto or ray://HOST:PORT."
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name in ("up", "scale"):
        made = actions.add_parser(name, help="bring the number of workers to N"
                                  if name == "up" else "the same, with another N")  # fmt: skip
        made.add_argument("--workers", type=_count, required=True, metavar="N")
        made.set_defaults(command=cluster.up)
        _workers(made)
        _common(made)
    made = actions.add_parser("status", help="all workers; exit code 1 unless all are ready")
    made.set_defaults(command=cluster.status)
    _address(made)
    made = actions.add_parser("drain", help="let workers finish what runs, and remove them")
    made.set_defaults(command=cluster.drain)
    made.add_argument("names", nargs="+", metavar="NAME", help="kvstitch-worker-1, ...")
    _ending(made)
    made = actions.add_parser("down", help="drain all workers")
    made.set_defaults(command=cluster.down)
    _ending(made)


def _workers(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--cpus-per-worker", type=_amount, default=1.0, metavar="X", help="that Ray sets aside "
        "(default: 1)")  # fmt: skip
    add("--gpus-per-worker", type=_share, metavar="X", help="default: 1 where the cluster has "
        "GPUs, else 0")  # fmt: skip
    add("--resource", type=_resource, action="append", metavar="NAME=X", help="another of Ray's "
        "resources; may be repeated")  # fmt: skip
    add("--ports", type=_ports, metavar="FIRST-LAST", help="that workers listen on (default: any "
        "free one)")  # fmt: skip
    add("--runtime-env", metavar="JSON", help="Ray's runtime environment of new actors, or a file "
        "with it; Ray logs it, so no secrets")  # fmt: skip
    for flag, setting, kind, text in _SETTINGS:
        add(flag, dest=setting, type=kind, help=text)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout-s", type=_amount, default=600.0, help="how long workers may "
                        "take to become ready, or to drain (default: 600)")  # fmt: skip
    _address(parser)


def _ending(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--now", action="store_true", help="cut streams off")
    _common(parser)


def _address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--address", default="auto", help="of Ray: auto (RAY_ADDRESS, or the "
                        "cluster of this machine), HOST:PORT, or ray://HOST:PORT")  # fmt: skip
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS,
                        help="JSON on stdout and nothing else")  # fmt: skip


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be at least 0")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError("must be at least 0")
    return value


def _amount(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def _resource(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    if not name or not amount:
        raise argparse.ArgumentTypeError("must be NAME=AMOUNT")
    return name, _amount(amount)


def _ports(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    found = int(first), int(last or first)
    if not 1 <= found[0] <= found[1] <= 65535:
        raise argparse.ArgumentTypeError("must be FIRST-LAST, from 1 to 65535")
    return found
