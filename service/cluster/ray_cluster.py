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
from importlib.util import find_spec
from typing import Any

from service.cluster.actor import WorkerActor
from service.cluster.actor_state import ActorState
from service.cluster.names import NAMESPACE, name_of, workers_among
from service.cluster.plan import WorkerPlan
from service.cluster.room import Machine, why_no_place
from service.errors import InvalidSetting, KvstitchError

MISSING = "Ray is not installed: pip install 'kvstitch[ray]'"
# Calls that one actor answers at the same time: every gateway has one open.
_CONCURRENT_CALLS = 1000
_REPLY_S = 5.0


class ClusterError(KvstitchError):
    """Ray, or a worker of the cluster, does not do what was asked; the message says what to do."""

    code = "cluster_error"


@contextmanager
def connect(address: str) -> Iterator[RayCluster]:
    """A cluster that runs, for as long as the block lasts; standard output is then standard error.

    Args:
        address: `auto`, HOST:PORT of the head where this machine belongs to the cluster, or
            ray://HOST:PORT of its Ray Client server.

    Raises:
        InvalidSetting: Ray is not installed.
        ClusterError: No cluster answers there.
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
        # Ray tells on standard output when a node is lost, whatever it was told about logs.
        with redirect_stdout(sys.stderr):
            yield RayCluster(ray)
    finally:
        ray.shutdown()


class RayCluster:
    """The workers of the cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._started: dict[str, Any] = {}  # handles, for those that end before they are listed

    # -- actors ----------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Of all worker actors, those included that have no place yet."""
        return workers_among(self._ray.util.list_named_actors())

    def start(
        self, number: int, plan: WorkerPlan, runtime_env: Mapping[str, Any] | None = None
    ) -> str:
        """Makes an actor; returns its name at once.

        Raises:
            ClusterError: There is one of that number.
        """
        name = name_of(number)
        options: dict[str, Any] = {
            "name": name,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "max_restarts": -1,
            "max_concurrency": _CONCURRENT_CALLS,
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
        """What each actor tells; `waiting` or `failed` for those that cannot tell anything.

        Args:
            names: Of the actors; None: all.
            patience_s: For the replies.
        """
        asked: dict[str, Any] = {}
        found: dict[str, ActorState] = {}
        for name in self.names() if names is None else names:
            if (handle := self._handle(name)) is None:
                found[name] = ActorState(name, "ended", reason="there is no such actor")
            else:
                asked[name] = handle.state.remote()
        if asked:
            self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=patience_s)
        for name, reply in asked.items():
            found[name] = self._state(name, reply)
        return [found[name] for name in workers_among(found)]

    def drain(self, name: str) -> None:
        """Asks a worker to finish what runs and go; does not wait."""
        if (handle := self._handle(name)) is not None:
            handle.drain.remote()

    def kill(self, name: str) -> None:
        """Removes an actor at once; its process loses its input, and ends by itself."""
        if (handle := self._handle(name)) is not None:
            self._ray.kill(handle, no_restart=True)

    # -- for discovery ---------------------------------------------------------------------------

    def ask_change(self, name: str, seen: int, patience_s: float) -> Any | None:
        """A reference to the actor's next state; None if there is no such actor."""
        handle = self._handle(name)
        return None if handle is None else handle.changed.remote(seen, patience_s)

    def first_replies(self, open_calls: Sequence[Any], patience_s: float) -> list[Any]:
        """Those of the references that are there, after `patience_s` at the latest."""
        first, _ = self._ray.wait(list(open_calls), timeout=patience_s)
        if first:  # and what else is there by now
            first, _ = self._ray.wait(list(open_calls), num_returns=len(open_calls), timeout=0)
        return list(first)

    def change(self, reply: Any) -> tuple[int, ActorState] | None:
        """What a reply says; None if the actor cannot be reached now, perhaps only for a while."""
        try:
            revision, fields = self._ray.get(reply)
        except self._ray.exceptions.RayError:
            return None
        return revision, ActorState.of(fields)

    # -- the cluster -----------------------------------------------------------------------------

    def has_gpus(self) -> bool:
        return bool(self._ray.cluster_resources().get("GPU", 0))

    def why_no_place(self, demand: Mapping[str, float]) -> str:
        """Why a worker has no place, in words."""
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

    def _state(self, name: str, reply: Any) -> ActorState:
        exceptions = self._ray.exceptions
        try:
            return ActorState.of(self._ray.get(reply, timeout=0))
        except exceptions.GetTimeoutError:
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


def _require_listener(address: str) -> None:
    """Ray itself waits for two minutes where nobody listens.

    Raises:
        ClusterError: Nobody does.
    """
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
