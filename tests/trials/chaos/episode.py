"""One episode: some actions under load, then calm, then every invariant."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable

from tests.trials.chaos import invariants
from tests.trials.chaos.actions import clients, disk, processes, redis
from tests.trials.chaos.errors import Violation
from tests.trials.chaos.journal import load_json, save_json
from tests.trials.chaos.load import Load
from tests.trials.chaos.world import World

Action = Callable[[World, random.Random], None]

# Kills of Redis cost milliseconds, a start of the service seconds: so these weights.
ACTIONS: dict[Action, int] = {
    processes.kill_gateway: 4,
    processes.kill_both: 3,
    processes.kill_worker: 4,
    processes.kill_at_start: 5,
    processes.kill_at_point: 10,
    processes.sigterm: 2,
    processes.kill_worker_on_every_route: 2,
    processes.clock_jump: 2,
    redis.kill: 8,
    redis.away: 2,
    redis.freeze: 3,
    redis.flush: 2,
    redis.damage: 4,
    disk.damage: 8,
    disk.damage_while_stopped: 2,
    disk.full: 3,
    disk.killed_while_full: 1,
    clients.drip: 1,
    clients.never_read: 3,
    clients.delete_while_loading: 4,
}


def run(world: World, seed: str, actions: int) -> None:
    """Run the episode that `seed` says. What was seen to be wrong is in the journal.

    Raises:
        Violation: An invariant does not hold.
    """
    chance = random.Random(seed)
    world.journal.begin(f"[{seed}]")
    chosen = chance.choices(list(ACTIONS), list(ACTIONS.values()), k=actions)
    world.ensure_ready(chance)
    load = Load(world, chance)
    load.start()
    try:
        for action in chosen:
            world.journal.step(f"{action.__module__.rpartition('.')[2]}.{action.__name__}")
            world.journal.count("actions")
            action(world, chance)
            time.sleep(chance.uniform(0, 1.5))
    finally:
        put_right(world)
        load.stop()
    calm(world, chance)


def put_right(world: World) -> None:
    """Everything but the service itself is as it should be."""
    world.faults.clear()
    world.planned_death_happened()
    world.planned = ""
    world.volume.release()
    with contextlib.suppress(FileNotFoundError):
        disk.put_right(world.kv_dir)
    redis.put_right(world)


def calm(world: World, chance: random.Random) -> None:
    """Wait for rest, and check.

    Raises:
        Violation: An invariant does not hold.
    """
    world.journal.step("calm")
    life = world.ensure_ready(chance)
    invariants.until(lambda: life.worker() is not None and life.wait_ready(), "no worker")
    invariants.check_all(world, chance)
    now = invariants.resources(world)
    if (warm := load_json(world.folder / "warm.json")) is None:
        save_json(world.folder / "warm.json", warm := now)
    invariants.returned(now, warm)
    for role, values in now.items():
        world.journal.step(f"{role}: {values}")
    if world.journal.violations:
        raise Violation(world.journal.violations[0])
