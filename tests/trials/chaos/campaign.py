"""A run: episodes until the time is up. What it needs to go on is kept in its folder."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e import models
from tests.redis_server import redis_server
from tests.trials.chaos import episode, twin
from tests.trials.chaos.asks import asks_about
from tests.trials.chaos.documents import Ledger, universe
from tests.trials.chaos.errors import Violation
from tests.trials.chaos.journal import Journal, load_json, save_json
from tests.trials.chaos.life import Faults
from tests.trials.chaos.volume import Volume
from tests.trials.chaos.world import World

METHODS = (
    "a3", "cacheblend", "full_reuse", "legolink", "pie", "question_scout", "prophetkv",
    "infoflow", "fusionrag", "samkv", "vanilla",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How long and how much.

    Attributes:
        seed: The episodes' seeds are made from it.
        minutes: Of episodes; what the twin takes is not counted.
        actions: Per episode.
        asked: Documents that questions are about.
        others: Documents that come and go.
        questions: Per method.
        first: Number of the first episode, to replay one.
        episodes: At most so many.
    """

    seed: int
    minutes: float
    actions: int = 14
    asked: int = 12
    others: int = 24
    questions: int = 3
    first: int | None = None
    episodes: int | None = None


def run(folder: Path, plan: Plan) -> Journal:
    """Go on with the run of this folder, or begin it; the journal has the violations."""
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "chaos-model"
    if not model.exists():
        models.demo(model)
    journal = Journal(folder)
    documents = universe(plan.asked, plan.others)
    asks = asks_about(documents[: plan.asked], list(METHODS), plan.questions)
    known = twin.of_service(model, documents, asks, folder)
    volume = Volume(folder / "volume")
    state = load_json(folder / "state.json") or {"episode": 0, "seconds": 0.0, "counts": {}}
    journal.load(state["counts"])
    if (commit := _commit()) not in state.setdefault("commits", []):
        state["commits"].append(commit)
    ledger = Ledger(documents)
    ledger.forget_all()  # the catalog of an earlier run tells in the first calm
    violations: list[str] = state.setdefault("violations", [])
    with volume, redis_server() as redis:
        world = World(
            folder, model, volume, redis, Faults(folder / "faults"), journal, ledger, known, asks
        )
        try:
            world.prepare()
            number = state["episode"] if plan.first is None else plan.first
            last = None if plan.episodes is None else number + plan.episodes
            ends_at = time.monotonic() + plan.minutes * 60 - state["seconds"]
            while time.monotonic() < ends_at and number != last:
                began = time.monotonic()
                try:
                    violations += _episode(world, plan, number)
                    number += 1
                finally:  # an episode that is stopped counts, and is begun anew
                    state["episode"] = number
                    state["seconds"] += time.monotonic() - began
                    save_json(folder / "state.json", {**state, "counts": journal.as_json()})
        finally:
            if world.life is not None:
                world.life.kill_both()
    journal.violations = violations
    save_json(folder / "report.json", report(journal, plan, state, volume_was_small=volume.small))
    return journal


def _episode(world: World, plan: Plan, number: int) -> list[str]:
    """One episode; its violations. After one the catalog is believed, and the run goes on."""
    seed = f"{plan.seed}/{number}"
    journal = world.journal
    journal.violations = []
    try:
        episode.run(world, seed, plan.actions)
    except Violation as violation:
        if str(violation) not in journal.violations:
            journal.violation(str(violation))
    if not journal.violations:
        journal.count("episodes")
        return []
    journal.count("violations", len(journal.violations))
    log = world.life.log() if world.life is not None else ""
    again = f"CHAOS_SEED={plan.seed} CHAOS_EPISODE={number} python -m tests.trials.chaos"
    path = journal.write_violation(number, f"episode {seed}; the same actions again: {again}", log)
    print(f"{path}:\n{path.read_text()}", flush=True)
    world.ledger.forget_all()
    world.receipts.clear()
    if world.life is not None:
        world.life.kill_both()
    return journal.violations


def report(
    journal: Journal, plan: Plan, state: dict[str, Any], *, volume_was_small: bool
) -> dict[str, object]:
    """What docs/testing.md is written from."""
    return {
        "seed": plan.seed,
        "commits": state["commits"],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "minutes": round(state["seconds"] / 60, 1),
        "disk could be filled": volume_was_small,
        "kills": journal.total("kill "),
        "damages": journal.total("damage "),
        "counts": journal.as_json(),
        "violations": journal.violations,
    }


def _commit() -> str:
    """Of the checkout that is tested; empty where there is no git."""
    try:
        shown = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return shown.stdout.strip()
