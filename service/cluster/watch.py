"""`python -m service.cluster.watch ADDRESS`: prints the workers' addresses whenever they change.

One line of JSON each time, {"addresses": [...]}, the whole list. A gateway runs this as a process
of its own, so that it never imports ray. It ends when its standard input closes. Actors answer when
something changes; only their list is asked for every second.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from typing import Any, TextIO

from service.cluster.address_book import AddressBook
from service.cluster.ray_cluster import RayCluster, connect
from service.errors import KvstitchError

LIST_EVERY_S = 1.0
# An open call of a gateway that is gone ends after this time.
CHANGE_WITHIN_S = 30.0
# The first list is not printed before all actors have answered, or this time has passed: one that
# is not complete would make a gateway drop workers that are there.
FIRST_LIST_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m service.cluster.watch", description=__doc__)
    parser.add_argument("address", help="auto, HOST:PORT or ray://HOST:PORT")
    address = parser.parse_args().address
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    out = sys.stdout
    try:
        with connect(address) as cluster:
            watch(cluster, out)
    except KvstitchError as error:
        print(error.message, file=sys.stderr)
    except Exception as error:  # Ray's head is away; who started this starts it again
        print(f"Ray does not answer: {type(error).__name__}: {error}", file=sys.stderr)
    return 1


def watch(cluster: RayCluster, out: TextIO) -> None:
    """Prints lists until Ray does not answer, which raises."""
    book = AddressBook()
    calls: dict[Any, str] = {}  # open calls and their actors' names
    seen: dict[str, int] = {}
    printed: list[str] | None = None
    began, listed_at = time.monotonic(), 0.0
    names: list[str] = []
    while True:
        if time.monotonic() - listed_at >= LIST_EVERY_S:
            names, listed_at = cluster.names(), time.monotonic()
            book.keep(names)
            for name in set(names) - set(calls.values()):
                if (call := cluster.ask_change(name, seen.get(name, -1), CHANGE_WITHIN_S)) is None:
                    continue
                calls[call] = name
        if calls:
            for reply in cluster.first_replies(list(calls), LIST_EVERY_S):
                name = calls.pop(reply)
                change = cluster.change(reply)
                seen.pop(name, None)
                if change is None or name not in names:
                    continue  # asked again with the next list
                seen[name], state = change
                book.heard(state)
                if (call := cluster.ask_change(name, seen[name], CHANGE_WITHIN_S)) is not None:
                    calls[call] = name
        else:
            time.sleep(LIST_EVERY_S)
        first = printed is None
        if first and book.missing(names) and time.monotonic() - began < FIRST_LIST_S:
            continue
        if book.addresses != printed:
            printed = book.addresses
            print(json.dumps({"addresses": printed}), file=out, flush=True)


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)  # the main thread may wait in Ray


if __name__ == "__main__":
    sys.exit(main())
