"""The arguments of `kvstitch bulk`, and of `kvstitch bulk status`."""

from __future__ import annotations

import argparse
from typing import Any

from service.cli import bulk
from service.cli.options import positive


def add_bulk(parser: argparse.ArgumentParser) -> None:
    """Everything that `kvstitch bulk` takes."""
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
    parser.set_defaults(command=bulk.run)
    _common(parser, default=None)
    actions = parser.add_subparsers(metavar="ACTION")
    status = actions.add_parser("status", help="how far runs are, also while they go on")
    status.set_defaults(command=bulk.status)
    _common(status, default=argparse.SUPPRESS)


def _common(parser: argparse.ArgumentParser, *, default: Any) -> None:
    """What both take. The action leaves alone what it is not given."""
    for name, help in (
        ("--input", "s3://bucket/prefix, a folder, or a .jsonl file; all nodes must see it there"),
        ("--input-endpoint", "URL of the S3 server of the input (default: that of the tier)"),
        ("--model", "as for `serve` (default: the demo model)"),
        ("--model-cache", "where folders made of .gguf files are kept"),
        ("--database", "the gateways' PostgreSQL"),
        ("--redis", "the gateways' Redis tier"),
        ("--s3", "the gateways' cold tier"),
        ("--s3-endpoint", "its server; without it AWS"),
        ("--s3-region", "without it AWS_REGION, or us-east-1"),
        ("--write-tiers", "shared tiers that get KV (default: all)"),
        ("--codec", "how KV is stored: raw, int8, int4 or int2"),
        ("--dtype", "auto, float32, float16 or bfloat16"),
        ("--quantize", "off, int8 or int4"),
        ("--device", "auto, cpu, cuda or cuda:N"),
        ("--embedder", "sentence-embedding model folder (default: all-MiniLM-L6-v2)"),
        ("--prefix-mode", "what a chunk sees when it is precomputed"),
        ("--calibration", "the gateways' calibration.json (default: the model folder's)"),
    ):
        renamed = {"--redis": "redis_url", "--s3": "s3_url"}.get(name)
        dest = renamed or name[2:].replace("-", "_")
        parser.add_argument(name, dest=dest, help=help, default=default)
    for name, help in (
        ("--redis-ttl", "seconds; 0: until Redis evicts"),
        ("--threads", "CPU threads of a worker (default: --cpus-per-worker)"),
        ("--chunk-tokens", "tokens per chunk (default: the model folder's)"),
    ):
        dest = "redis_ttl_s" if name == "--redis-ttl" else name[2:].replace("-", "_")
        parser.add_argument(name, dest=dest, help=help, type=int, default=default)
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="JSON on "
                        "stdout and nothing else: a line per event")  # fmt: skip
