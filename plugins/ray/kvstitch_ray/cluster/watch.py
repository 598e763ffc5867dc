"""`python -m kvstitch_ray.cluster.watch ADDRESS`: prints the workers' addresses when they change.

One line of JSON each time, {"addresses": [...]}, the whole list. A gateway runs this as a process
of its own, so that it never imports ray. It ends when its standard input closes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import TextIO

from kvstitch.service.errors import KvstitchError
from kvstitch_ray.cluster.ray_cluster import RayCluster, connect
from kvstitch_ray.cluster.records import REACHABLE, ActorState

LIST_EVERY_S = 1.0
# The first list is printed when all actors have answered, or after this time: a list that lacks
# some would make a gateway drop workers that are there.
FIRST_LIST_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kvstitch_ray.cluster.watch", description=__doc__
    )
    parser.add_argument("address", help="auto, HOST:PORT or ray://HOST:PORT")
    address = parser.parse_args().address
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    out = sys.stdout
    try:
        with connect(address) as cluster:
            watch(cluster, out)
    except KvstitchError as error:
        print(error.message, file=sys.stderr)
    except Exception as error:  # Ray's head is away; the gateway starts this process again
        print(f"Ray does not answer: {type(error).__name__}: {error}", file=sys.stderr)
    return 1


def watch(cluster: RayCluster, out: TextIO) -> None:
    """Print lists until Ray does not answer, which raises."""
    workers = WorkerAddresses()
    printed: list[str] | None = None
    began = time.monotonic()
    while True:
        workers.update(cluster.states(patience_s=LIST_EVERY_S))
        waiting = workers.unknown and time.monotonic() - began < FIRST_LIST_S
        if workers.addresses != printed and not (printed is None and waiting):
            printed = workers.addresses
            print(json.dumps({"addresses": printed}), file=out, flush=True)
        time.sleep(LIST_EVERY_S)


class WorkerAddresses:
    """The addresses that gateways get, by the names of the actors."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self.unknown = False

    def update(self, states: Sequence[ActorState]) -> None:
        """Take the states of all actors that there are."""
        known, self._addresses, self.unknown = self._addresses, {}, False
        for state in states:
            answered = state.phase not in ("waiting", "failed")
            address = state.address if answered else known.get(state.name, "")
            if address and (not answered or state.phase in REACHABLE):
                self._addresses[state.name] = address
            self.unknown |= not answered and not address

    @property
    def addresses(self) -> list[str]:
        return sorted(self._addresses.values())


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)  # the main thread may wait in Ray


if __name__ == "__main__":
    sys.exit(main())
