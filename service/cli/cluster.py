"""`kvstitch cluster`: workers on several machines, with Ray."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cli.output import console, emit, plain, table
from service.cli.service_client import WrongArgument

if TYPE_CHECKING:
    from service.cluster.actor_state import ActorState
    from service.cluster.ray_cluster import RayCluster
    from service.cluster.scaling import Scaling


def up(args: argparse.Namespace) -> int:
    """Bring the number of workers to --workers and wait until all are ready."""
    with _scaling(args) as (_, scaling):
        states = scaling.up(args.workers)
    _show(states, args)
    return 0


def status(args: argparse.Namespace) -> int:
    """Print all workers; 0 if there are some and all are ready or draining, else 1."""
    with _connected(args) as cluster:
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


# -- inside --------------------------------------------------------------------------------------


@contextmanager
def _connected(args: argparse.Namespace) -> Iterator[RayCluster]:
    from service.cluster.ray_cluster import connect

    with connect(args.address) as cluster:
        yield cluster


@contextmanager
def _scaling(args: argparse.Namespace) -> Iterator[tuple[RayCluster, Scaling]]:
    from service.cluster.plan import WorkerPlan
    from service.cluster.scaling import Scaling
    from service.settings import Settings, load

    names = set(Settings.model_fields) - {"workers"}
    settings = load(**{name: value for name, value in vars(args).items() if name in names})
    runtime_env = _runtime_env(getattr(args, "runtime_env", None))
    with _connected(args) as cluster:
        gpus = getattr(args, "gpus_per_worker", None)
        plan = WorkerPlan.of(
            settings,
            cpus=getattr(args, "cpus_per_worker", 1.0),
            gpus=float(cluster.has_gpus()) if gpus is None else gpus,
            resources=dict(getattr(args, "resource", None) or ()),
            ports=getattr(args, "ports", None),
        )
        yield (
            cluster,
            Scaling(
                cluster,
                plan,
                say=_say,
                timeout_s=getattr(args, "timeout_s", 0.0),
                runtime_env=runtime_env,
            ),
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
        emit([state.fields() for state in states])
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
