"""Kills and signals: gateway, worker, both, at random moments and at named points of a write."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import httpx

from tests.trials.chaos.documents import OF_ALL, OPERATOR
from tests.trials.chaos.errors import Violation
from tests.trials.chaos.load import write_once
from tests.trials.chaos.outcomes import send
from tests.trials.chaos.world import World

POINTS = {
    "gateway": ("os.replace", "os.fsync", "sqlite.execute", "sqlite.commit", "os.unlink"),
    "worker": ("os.replace", "os.fsync", "os.writev", "os.unlink", "socket.sendall"),
}
REACHED_S = 6.0  # until the point is reached, with writes of our own; then the plan is withdrawn
QUICK_WORKER_KILLS = 4  # a gateway waits longer after each death of its worker


def kill_gateway(world: World, chance: random.Random) -> None:
    """At any moment; its worker notices by itself, and the next gateway does not wait for it."""
    life = world.ensure_running(chance) if chance.random() < 0.5 else world.ensure_ready(chance)
    time.sleep(chance.uniform(0, 0.5))
    if life.ended:
        world.note_death(life)
        return
    life.kill_gateway()
    world.journal.count("kill of the gateway, any moment")
    world.launch(chance)


def kill_both(world: World, chance: random.Random) -> None:
    life = world.ensure_ready(chance)
    time.sleep(chance.uniform(0, 0.5))
    world.journal.count("kill of gateway and worker, any moment", life.kill_both())
    world.launch(chance)


def kill_worker(world: World, chance: random.Random) -> None:
    """Also while it starts: its gateway waits longer and longer, so not for ever."""
    life = world.ensure_running(chance)
    for _ in range(chance.randint(1, QUICK_WORKER_KILLS)):
        time.sleep(chance.uniform(0, 2.0))
        if life.kill_worker():
            world.journal.count("kill of the worker, any moment")


def kill_at_start(world: World, chance: random.Random) -> None:
    """Some starts in a row, each ended by a kill before it is ready or shortly after."""
    if world.life is not None and not world.life.ended:
        world.journal.count("kill of gateway and worker, any moment", world.life.kill_both())
    for _ in range(chance.randint(3, 8)):
        life = world.launch(chance)
        time.sleep(chance.uniform(0.1, 1) * chance.uniform(0.1, 8))
        if life.ended:
            world.note_death(life)
            continue
        world.journal.count("kill of gateway and worker, at start", life.kill_both())
    world.launch(chance)


def kill_at_point(world: World, chance: random.Random) -> None:
    """The process kills itself before or after the nth call of one of its writes."""
    life = world.ensure_ready(chance)
    role = chance.choice(("gateway", "worker"))
    point, after = chance.choice(POINTS[role]), chance.random() < 0.5
    world.planned = f"{role} {'after' if after else 'before'} {point}"
    if role == "gateway":
        life.doomed = True
    world.faults.die_at(role, point, chance.randint(1, 6), after)
    give_up_at = time.monotonic() + REACHED_S
    while not world.planned_death_happened():
        if time.monotonic() > give_up_at:
            world.faults.clear()
            world.planned_death_happened()
            break
        _write(world, chance)
        time.sleep(0.05)
    world.planned = ""
    time.sleep(0.2)
    if role == "gateway" and not life.ended:
        life.doomed = False
    elif life.ended:
        world.launch(chance)


def _write(world: World, chance: random.Random) -> None:
    try:
        write_once(world, chance)
    except Violation as violation:
        world.journal.violation(str(violation))
    except httpx.TransportError:
        pass


def sigterm(world: World, chance: random.Random) -> None:
    """Once or twice; it ends in order, and soon."""
    life = world.ensure_ready(chance)
    times = chance.choice((1, 2, 2))
    code = life.terminate(times)
    world.journal.count(f"SIGTERM, {times} times")
    world.journal.step(f"exit code {code}")
    if times == 1 and code != 0:
        raise Violation(f"exit code {code} after SIGTERM:\n{life.log()[-3000:]}")
    world.launch(chance)


def kill_worker_on_every_route(world: World, chance: random.Random) -> None:
    """A request of every route is under way when the worker dies: each ends."""
    life = world.ensure_ready(chance)
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", ask.route, {"json": ask.body(stream=chance.random() < 0.5)})
        for ask in chance.sample(world.asks, 6)
    ]
    requests += [
        ("POST", "/v1/rag/generate", {"json": {"question": "Why?", "explain": True}}),
        ("GET", "/status", {}),
        ("GET", "/metrics", {}),
        ("GET", "/admin/documents", {}),
        ("GET", "/admin/gate", {}),
        ("POST", "/admin/gate/reset", {"json": {}}),
        ("GET", "/v1/methods", {}),
        ("POST", "/admin/deletions", {"json": {"doc_ids": ["nobody"]}}),
    ]
    violations: list[str] = []

    def run(method: str, path: str, request: dict[str, Any]) -> None:
        try:
            with world.client(OPERATOR if path in OF_ALL else "red") as client:
                send(world, client, method, path, **request)
        except Violation as violation:
            violations.append(str(violation))
        except httpx.TransportError:
            pass

    threads = [threading.Thread(target=run, args=request) for request in requests]
    for thread in threads:
        thread.start()
    time.sleep(chance.uniform(0, 0.3))
    if life.kill_worker():
        world.journal.count("kill of the worker, with every route under way")
    for thread in threads:
        thread.join()
    if violations:
        raise Violation("; ".join(violations))


def clock_jump(world: World, chance: random.Random) -> None:
    """The time of day of both processes jumps, back or forth, and stays there until calm."""
    seconds = chance.choice((-400.0, -1.0, -0.04, 0.04, 1.0, 40.0)) * 86_400
    world.faults.shift_clock(seconds)
    world.journal.count("clock jumps")
