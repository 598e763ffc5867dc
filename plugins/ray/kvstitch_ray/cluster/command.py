"""`kvstitch cluster`: workers on several machines, with Ray."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstitch.service.cli.options import (
    WrongArgument,
    add_options_of_plugins,
    add_setting_options,
    settings_of,
)
from kvstitch.service.cli.output import console, emit, plain, table

if TYPE_CHECKING:
    from kvstitch_ray.cluster.ray_cluster import RayCluster
    from kvstitch_ray.cluster.records import ActorState
    from kvstitch_ray.cluster.scaling import Scaling


# Settings of workers, as `serve` has them; those of gateways are not taken.
_SETTINGS = {
    "--model": "as for `serve`; a folder must be there on every machine",
    "--lora": "LoRA adapters, NAME=FOLDER, by commas",
    "--model-cache": "where folders made of .gguf files are kept",
    "--data-dir": "on the workers' machines: their SSD tier",
    "--redis": "shared KV tier",
    "--write-tiers": "tiers besides memory that get computed KV",
    "--codec": "how KV is stored: int2, int4, int8 or raw",
    "--dtype": "auto, float32, float16 or bfloat16",
    "--quantize": "int8 or int4: weights in fewer bits",
    "--device": "auto, cpu or cuda",
    "--memory-tier-mib": "KV in memory, of each worker; 0: none",
    "--ssd-tier-gib": "KV on disk, of each machine; 0: none",
    "--threads": "CPU threads of a worker (default: --cpus-per-worker)",
    "--max-running": "sequences decoded together, by each worker",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Workers on several machines: detached Ray actors, each with one worker process. "
        "Gateways find them by KVSTITCH_WORKER_ADDRESSES=ray://auto or ray://HOST:PORT."
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name in ("up", "scale"):
        made = actions.add_parser(name, help="bring the number of workers to N"
                                  if name == "up" else "the same, with another N")  # fmt: skip
        made.add_argument("--workers", type=_count, required=True, metavar="N")
        made.set_defaults(command=up)
        _add_worker_options(made)
        _common(made)
    made = actions.add_parser("status", help="all workers; exit code 1 unless all are ready")
    made.set_defaults(command=status)
    _address(made)
    made = actions.add_parser("drain", help="let workers finish what runs, and remove them")
    made.set_defaults(command=drain)
    made.add_argument("names", nargs="+", metavar="NAME", help="kvstitch-worker-1, ...")
    _ending(made)
    made = actions.add_parser("down", help="drain all workers")
    made.set_defaults(command=down)
    _ending(made)


def _add_worker_options(parser: argparse.ArgumentParser) -> None:
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
    add_setting_options(parser, _SETTINGS)
    add_options_of_plugins(parser)


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


def up(args: argparse.Namespace) -> int:
    """Bring the number of workers to --workers and wait until all are ready."""
    with _scaling(args) as (_, scaling):
        states = scaling.up(args.workers)
    _show(states, args)
    return 0


def status(args: argparse.Namespace) -> int:
    """Print all workers; 0 if there are some and all are ready or draining, else 1."""
    from kvstitch_ray.cluster.ray_cluster import connect

    with connect(args.address) as cluster:
        states = cluster.states()
    _show(states, args)
    fine = bool(states) and all(state.phase in ("ready", "draining") for state in states)
    return 0 if fine else 1


def drain(args: argparse.Namespace) -> int:
    """Let workers finish what runs, and remove them."""
    with _scaling(args) as (cluster, scaling):
        names = cluster.names()
        if unknown := [name for name in args.names if name not in names]:
            raise WrongArgument(
                f"there is no worker {', '.join(unknown)}; there are: {', '.join(names) or 'none'}"
            )
        scaling.down(args.names, now=args.now)
    return 0


def down(args: argparse.Namespace) -> int:
    """Drain all workers."""
    with _scaling(args) as (_, scaling):
        scaling.down(now=args.now)
    return 0


@contextmanager
def _scaling(args: argparse.Namespace) -> Iterator[tuple[RayCluster, Scaling]]:
    from kvstitch_ray.cluster.ray_cluster import connect
    from kvstitch_ray.cluster.records import WorkerPlan
    from kvstitch_ray.cluster.scaling import Scaling

    settings = settings_of(args, without={"workers"})
    runtime_env = _runtime_env(getattr(args, "runtime_env", None))
    with connect(args.address) as cluster:
        gpus = getattr(args, "gpus_per_worker", None)
        plan = WorkerPlan.of(
            settings,
            cpus=getattr(args, "cpus_per_worker", 1.0),
            gpus=float(cluster.has_gpus()) if gpus is None else gpus,
            resources=dict(getattr(args, "resource", None) or ()),
            ports=getattr(args, "ports", None),
        )
        timeout_s = getattr(args, "timeout_s", 0.0)
        yield (
            cluster,
            Scaling(cluster, plan, say=_say, timeout_s=timeout_s, runtime_env=runtime_env),
        )


def _runtime_env(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    try:
        text = given if given.lstrip().startswith("{") else Path(given).read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError) as error:
        raise WrongArgument(f"--runtime-env is neither JSON nor a file of it: {error}") from error
    if not isinstance(found, dict):
        raise WrongArgument("--runtime-env must be a JSON object, as Ray takes it")
    return found


def _say(text: str) -> None:
    print(f"kvstitch: {plain(text)}", file=sys.stderr, flush=True)


def _show(states: Sequence[ActorState], args: argparse.Namespace) -> None:
    if args.json:
        emit([asdict(state) for state in states])
        return
    shown = table("worker", "machine", "address", "process", "version", "starts", "state",
                  numbers=("process", "starts"))  # fmt: skip
    for state in states:
        shown.add_row(
            state.name,
            plain(state.node),
            state.address,
            "" if state.pid is None else str(state.pid),
            state.version,
            str(state.restarts + 1),
            plain(state.phase + (f": {state.reason}" if state.reason else "")),
        )
    console().print(shown)
