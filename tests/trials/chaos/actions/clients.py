"""Hostile and unlucky clients: slow senders, readers that never read, deletes while loading."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx

from tests.trials.chaos.errors import Violation
from tests.trials.chaos.load import hand_in
from tests.trials.chaos.outcomes import check_answer, send
from tests.trials.chaos.world import World

DRIP_S = 0.1
CUT_OFF_S = 30.0


def drip(world: World, chance: random.Random) -> None:
    """A few headers and bodies come in byte by byte; the service closes these connections."""
    life = world.ensure_ready(chance)
    head = "POST /v1/rag/generate HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    body = "Content-Type: application/json\r\nContent-Length: 4000\r\n\r\n"
    senders = [head + "X-Slow: " + "a" * 4000, head + f"{_authorization(world)}{body}" + "{" * 4000]
    threads = [
        threading.Thread(target=_drip, args=(world, life.url, chance.choice(senders)))
        for _ in range(chance.randint(2, 8))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _drip(world: World, url: str, text: str) -> None:
    """Send until the other side has closed; a service that takes all of it is a violation."""
    life = world.life
    began = time.monotonic()
    fast = text.index("X-Slow") if "X-Slow" in text else text.index("\r\n\r\n") + 4
    with contextlib.suppress(OSError), _connected(url) as connection:
        connection.sendall(text[:fast].encode())
        for byte in text[fast:].encode():
            connection.sendall(bytes([byte]))
            time.sleep(DRIP_S)
            if time.monotonic() - began > CUT_OFF_S and life is not None and not life.doomed:
                world.journal.violation(f"a slow sender is not cut off in {CUT_OFF_S:.0f} s")
                return
    world.journal.count("slow senders")


def never_read(world: World, chance: random.Random) -> None:
    """Streams are asked for and not read; then the connections are closed or reset."""
    life = world.ensure_ready(chance)
    connections = []
    for _ in range(chance.randint(2, 10)):
        ask = chance.choice(world.asks)
        body = json.dumps(ask.body(stream=True))
        head = f"POST {ask.route} HTTP/1.1\r\nHost: 127.0.0.1\r\n{_authorization(world)}"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with contextlib.suppress(OSError):
            connection = _connected(life.url)
            connections.append(connection)
            connection.sendall((head + body).encode())
            world.journal.count("readers that never read")
    time.sleep(chance.uniform(0, 2))
    for connection in connections:
        connection.close()


def delete_while_loading(world: World, chance: random.Random) -> None:
    """Some ask about a document while it is deleted and handed in again."""
    world.ensure_ready(chance)
    ask = chance.choice([ask for ask in world.asks if ask.reads_kv])
    violations: list[str] = []

    def asking() -> None:
        with world.client("red") as client:
            for _ in range(4):
                reply = send(world, client, "POST", ask.route, json=ask.body())
                if reply is not None and reply.status_code == 200:
                    check_answer(world, ask, reply.json())

    def deleting() -> None:
        with (
            world.ledger.reserved(chance, "red", ("present",), 1000) as reserved,
            world.client("red") as client,
        ):
            for document in (d for d in reserved if d.doc_id in ask.doc_ids):
                world.ledger.note([document], "maybe")
                reply = send(world, client, "DELETE", f"/admin/documents/{document.doc_id}")
                if reply is None or reply.status_code != 200:
                    continue
                world.ledger.note([document], "absent")
                world.receipts.append(("red", reply.json()["receipt_id"]))
                world.journal.count("deletes while loading")
                hand_in(world, client, [document])

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except Violation as violation:
            violations.append(str(violation))
        except httpx.TransportError:
            pass

    works = [asking, asking, deleting]
    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if violations:
        raise Violation("; ".join(violations))


def _connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((str(parts.hostname), int(parts.port or 80)), timeout=10)


def _authorization(world: World) -> str:
    return f"Authorization: Bearer {world.api_keys['red']}\r\n"
