"""What goes to several workers at once: chunks to precompute, and replies read as if from one."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import msgspec

from kvstitch.service.gateway.fleet.member import Member
from kvstitch.service.gateway.fleet.routing.directory import Directory
from kvstitch.service.gateway.fleet.routing.router import Router
from kvstitch.service.messages.replies import GateState, GateStates, Precomputed, Purged, Stats
from kvstitch.service.messages.reports import GATE_STATES
from kvstitch.service.messages.requests import ChunkNames, ChunkTokens, Precompute

GATE_STATE_METRIC = "kvstitch_gate_state"


def stats(parts: Sequence[Stats]) -> Stats:
    """Return sums of requests, the mean share of free pool, and the gate's worst states."""
    worst: dict[str, float] = {}
    for part in parts:
        for name, labels, value in part.values:
            if name == GATE_STATE_METRIC:
                worst[labels["method"]] = max(value, worst.get(labels["method"], 0.0))
    return Stats(
        values=[(GATE_STATE_METRIC, {"method": m}, value) for m, value in worst.items()],
        running=sum(part.running for part in parts),
        waiting=sum(part.waiting for part in parts),
        pool_free=sum(part.pool_free for part in parts) / len(parts),
    )


def gate_states(parts: Sequence[GateStates]) -> GateStates:
    """Of every method the state at the worker that trusts it least; trips are summed."""
    found: dict[str, list[GateState]] = {}
    for part in parts:
        for state in part.states:
            parameters = json.dumps(state.fusion.parameters, sort_keys=True)
            found.setdefault(f"{state.fusion.name} {parameters}", []).append(state)
    worst = [max(states, key=lambda s: GATE_STATES.index(s.state)) for states in found.values()]
    trips = [sum(state.trips for state in states) for states in found.values()]
    merged = [replace(state, trips=count) for state, count in zip(worst, trips, strict=True)]
    return GateStates(parts[0].id, any(part.on for part in parts), merged)


def purged(parts: Sequence[Purged]) -> Purged:
    """Return how many copies all have deleted, and the tiers that one could not reach."""
    copies: dict[str, int] = {}
    for part in parts:
        for tier, count in part.copies.items():
            copies[tier] = copies.get(tier, 0) + count
    unreached = sorted({tier for part in parts for tier in part.unreached})
    return Purged(parts[0].id, copies, unreached)


async def spread_precompute(
    message: Precompute, members: Sequence[Member], router: Router, directory: Directory
) -> AsyncGenerator[Precomputed, None]:
    """Compute every chunk of a message at the worker that holds it, or at its home."""
    names = ChunkNames(message.system, message.prefix_mode, message.tenant, message.lora)
    replies: asyncio.Queue[Precomputed | Exception] = asyncio.Queue()

    async def compute(member: Member, part: list[ChunkTokens]) -> None:
        pending_s = member.compute_s(part)
        member.precompute_s += pending_s
        try:
            own = msgspec.structs.replace(message, documents=part)
            async for reply in member.client.precompute(own):
                replies.put_nowait(reply)
        except Exception as error:  # raised again below, where it is waited for
            replies.put_nowait(error)
        finally:
            member.precompute_s -= pending_s

    backlogs = {member.number: member.precompute_s for member in members}
    by_number = {member.number: member for member in members}
    parts: dict[int, list[ChunkTokens]] = {}
    by_id: dict[int, list[bytes]] = {}  # a chunk may be wanted with and without a prefix
    for chunk in message.documents:
        name = names.of(chunk)
        by_id.setdefault(chunk.chunk_id, []).append(name)
        number = router.place(name, backlogs)
        backlogs[number] += by_number[number].compute_s([chunk])
        parts.setdefault(number, []).append(chunk)
    tasks = [
        asyncio.create_task(compute(by_number[number], part)) for number, part in parts.items()
    ]
    try:
        for _ in message.documents:
            reply = await replies.get()
            if isinstance(reply, Exception):
                raise reply
            if reply.status != "failed":
                directory.note_stored(by_id[reply.chunk_id])
            yield reply
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
