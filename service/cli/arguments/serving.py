"""The arguments of what serves, and of what looks into it: `serve`, `worker`, `doctor`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from service.cli import doctor, serve, worker
from service.cli.arguments.common import add_client_options

WORKER_ADDRESS = "tcp://127.0.0.1:5700"


def add_serve(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run the service. Without options: the demo model on loopback."
    parser.epilog = "Every setting is also an environment variable, e.g. KVSTITCH_DATA_DIR."
    add_settings(parser)
    parser.set_defaults(command=serve.run)


def add_worker(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a worker by itself, for gateways that name it in KVSTITCH_WORKER_ADDRESSES. It takes "
        "the settings of `serve`; SIGTERM lets it finish what runs."
    )
    parser.epilog = "Beyond loopback KVSTITCH_FLEET_SECRET must be set, the same for all."
    parser.add_argument("--listen", metavar="ADDRESS", default=WORKER_ADDRESS, help="tcp://HOST:"
                        f"PORT; port 0: any (default: {WORKER_ADDRESS})")  # fmt: skip
    add_settings(parser)
    parser.set_defaults(command=worker.run)


def add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check what `serve` with the same options and environment would find, and the service at "
        "--url if one runs. Exit code 1 if anything fails."
    )
    add_settings(parser)
    parser.add_argument("--deep", action="store_true", help="also load model and embedder and run "
                        "the worker's start-up check (takes the model's memory)")  # fmt: skip
    add_client_options(parser)
    parser.set_defaults(command=doctor.run, url=None)


def add_settings(parser: argparse.ArgumentParser) -> None:
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
