"""Why Ray has no place for a worker, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A living node of the cluster: what it has in all, by Ray's names of resources."""

    name: str
    resources: Mapping[str, float]

    def has(self, demand: Mapping[str, float]) -> bool:
        return all(self.resources.get(name, 0) >= amount for name, amount in demand.items())


def why_no_place(
    demand: Mapping[str, float], machines: Sequence[Machine], free: Mapping[str, float]
) -> str:
    """One sentence.

    Args:
        demand: What one worker needs.
        machines: Of the cluster.
        free: What is not taken, over all machines.
    """
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
