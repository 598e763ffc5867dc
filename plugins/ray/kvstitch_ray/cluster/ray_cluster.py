"""The one place that calls Ray's API: lists, starts, asks and removes actors.

Ray's types are partial; `Any` ends here.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from kvstitch.service.errors import InvalidSetting, KvstitchError
from kvstitch_ray.cluster.actor import WorkerActor
from kvstitch_ray.cluster.records import NAMESPACE, ActorState, WorkerPlan, name_of, workers_among

MISSING = "Ray is not installed: pip install 'kvstitch[ray]'"
_REPLY_S = 5.0


class ClusterError(KvstitchError):
    """Ray, or a worker of the cluster, does not do what was asked; the message says what to do."""

    code = "cluster_error"


@contextmanager
def connect(address: str) -> Iterator[RayCluster]:
    """Connect to a running cluster for as long as the block lasts.

    Standard output goes to standard error meanwhile.
    """
    if find_spec("ray") is None:
        raise InvalidSetting(MISSING)
    # Without these Ray prints advice, and sends statistics to its makers.
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    _require_listener(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
    ray: Any = importlib.import_module("ray")
    try:
        # Ray puts the working directory first on the actors' path, on all machines: a checkout that
        # lies there would run in the place of what is installed, or of an upgrade.
        with chdir("/"):
            ray.init(
                address=address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except (ConnectionError, RuntimeError, ValueError, ImportError, OSError) as error:
        raise _no_cluster(address, _first_line(error)) from error
    try:
        # Ray prints to standard output when a node is lost, whatever its logging settings say.
        with redirect_stdout(sys.stderr):
            yield RayCluster(ray)
    finally:
        ray.shutdown()


class RayCluster:
    """The workers of the cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._started: dict[str, Any] = {}  # handles of actors that may end before they are listed
        self._calls: dict[str, Any] = {}  # of `state`, by name, that are not answered yet

    # -- actors ----------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all worker actors, also of those that have no machine yet."""
        return workers_among(self._ray.util.list_named_actors())

    def start(
        self, number: int, plan: WorkerPlan, runtime_env: Mapping[str, Any] | None = None
    ) -> str:
        """Create an actor and return its name at once."""
        name = name_of(number)
        options: dict[str, Any] = {
            "name": name,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "max_restarts": -1,
            "num_cpus": plan.cpus,
            "num_gpus": plan.gpus,
            "resources": dict(plan.resources),
            "scheduling_strategy": "SPREAD",
        }
        if runtime_env:
            options["runtime_env"] = dict(runtime_env)
        actor = self._ray.remote(WorkerActor).options(**options)
        try:
            self._started[name] = actor.remote(number, plan.to_json())
        except ValueError as error:
            raise ClusterError(f"{name} is there already: {_first_line(error)}") from error
        return name

    def states(
        self, names: Sequence[str] | None = None, patience_s: float = _REPLY_S
    ) -> list[ActorState]:
        """Return each actor's state; `waiting` or `failed` for those that cannot answer."""
        wanted = self.names() if names is None else names
        for name in wanted:
            # An actor that has not answered the call before is not called again.
            if name not in self._calls and (handle := self._handle(name)) is not None:
                self._calls[name] = handle.state.remote()
        calls = [self._calls[name] for name in wanted if name in self._calls]
        if calls:
            self._ray.wait(calls, num_returns=len(calls), timeout=patience_s)
        return [self._state(name) for name in workers_among(wanted)]

    def drain(self, name: str) -> None:
        """Ask a worker to finish what runs and go; does not wait."""
        if (handle := self._handle(name)) is not None:
            handle.drain.remote()

    def kill(self, name: str) -> None:
        """Remove an actor at once; its process loses its standard input, and ends by itself."""
        if (handle := self._handle(name)) is not None:
            self._ray.kill(handle, no_restart=True)

    # -- the cluster -----------------------------------------------------------------------------

    def has_gpus(self) -> bool:
        return bool(self._ray.cluster_resources().get("GPU", 0))

    def why_no_place(self, demand: Mapping[str, float]) -> str:
        """Say why a worker has no machine."""
        machines = [
            Machine(node["NodeManagerHostname"], node["Resources"])
            for node in self._ray.nodes()
            if node["Alive"]
        ]
        return why_no_place(demand, machines, self._ray.available_resources())

    # -- inside ----------------------------------------------------------------------------------

    def _handle(self, name: str) -> Any | None:
        if name in self._started:
            return self._started[name]
        with suppress(ValueError):
            return self._ray.get_actor(name, namespace=NAMESPACE)
        return None

    def _state(self, name: str) -> ActorState:
        exceptions = self._ray.exceptions
        call = self._calls.pop(name, None)
        if call is None:
            return ActorState(name, "ended", reason="there is no such actor")
        try:
            return ActorState.of(self._ray.get(call, timeout=0))
        except exceptions.GetTimeoutError:
            self._calls[name] = call
            return ActorState(name, "waiting", reason="Ray has not started it")
        except exceptions.ActorUnavailableError:
            return ActorState(name, "waiting", reason="its machine does not answer")
        except exceptions.ActorDiedError as error:
            self._started.pop(name, None)
            if "INTENDED" in str(error):
                return ActorState(name, "ended", reason="it was drained")
            return ActorState(name, "failed", reason=_last_line(error))
        except exceptions.RayError as error:
            return ActorState(name, "failed", reason=_last_line(error))


@dataclass(frozen=True)
class Machine:
    """A living node of the cluster, with all its resources by Ray's names."""

    name: str
    resources: Mapping[str, float]

    def has(self, demand: Mapping[str, float]) -> bool:
        return all(self.resources.get(name, 0) >= amount for name, amount in demand.items())


def why_no_place(
    demand: Mapping[str, float], machines: Sequence[Machine], free: Mapping[str, float]
) -> str:
    """Say in one sentence why a worker has no machine."""
    needs = f"it needs {_amounts(demand, demand)}"
    if not machines:
        return f"{needs}, and the cluster has no machine"
    large_enough = [machine for machine in machines if machine.has(demand)]
    if not large_enough:
        have = "; ".join(f"{each.name} has {_amounts(each.resources, demand)}" for each in machines)
        return f"{needs}, and no machine is so large: {have}"
    short = [name for name, amount in demand.items() if free.get(name, 0) < amount]
    if short:
        return (
            f"{needs}, and of {', '.join(short)} too little is free ({_amounts(free, demand)}), "
            "unless Ray is starting it right now"
        )
    return f"{needs}, which is free ({_amounts(free, demand)}), perhaps not on one machine"


def _amounts(found: Mapping[str, float], names: Mapping[str, float]) -> str:
    return ", ".join(f"{found.get(name, 0):g} {name}" for name in names) or "nothing"


def _require_listener(address: str) -> None:
    """Check that the address can be reached; Ray itself would wait for two minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # `auto`, or something that Ray refuses at once
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REPLY_S).close()
    except OSError as error:
        raise _no_cluster(address, error.strerror or str(error)) from error


def _no_cluster(address: str, why: str) -> ClusterError:
    return ClusterError(
        f"no Ray cluster answers at {address}: {why}. Start one with `ray start --head`, or give "
        "another --address; where the cluster wants a token, set RAY_AUTH_MODE=token and "
        "RAY_AUTH_TOKEN_PATH"
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(". ")


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return re.sub(r"\x1b\[[0-9;]*m", "", lines[-1]).strip() if lines else type(error).__name__
