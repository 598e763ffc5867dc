"""The pool over fakes on real sockets: what moves, what goes to all, what is told of several,
and of workers by state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kvstitch.service.errors import WorkerUnavailable
from kvstitch.service.gateway.fleet import all_workers
from kvstitch.service.gateway.fleet.member import Member, WorkerState, count_by_state
from kvstitch.service.gateway.fleet.worker_pool import WorkerPool
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.gateway.worker_client.client import Event, WorkerClient
from kvstitch.service.gateway.worker_client.supervisor import Supervisor
from kvstitch.service.messages.replies import (
    Done,
    Failed,
    Holdings,
    Purged,
    Stats,
    WorkerLoad,
)  # fmt: skip
from kvstitch.service.messages.requests import ChunkTokens, Generate, Precompute, Purge
from kvstitch.service.shared.worker_settings import WorkerSettings
from tests.fakes.worker import FakeWorker
from tests.service.gateway.rig import until_true
from tests.service.gateway.worker_client.test_client import request


@asynccontextmanager
async def pooled(
    data: Path, *workers: FakeWorker
) -> AsyncIterator[tuple[WorkerPool, list[FakeWorker], GatewayMetrics]]:
    metrics, members = GatewayMetrics(), []
    for number, worker in enumerate(workers):
        worker.address = f"ipc://{data}/w{number}.sock"
        client = WorkerClient(heartbeat_timeout_s=3.0, hello_every_s=0.05)
        supervisor = Supervisor(client, lambda _: WorkerSettings("", "", ""), on_refused=print)
        members.append(Member(number, client, supervisor))
        await worker.start()
        client.connect(worker.address)
    pool = WorkerPool(members, "round_robin", metrics, slower_tiers=True, prefix_cache=True)
    for member in members:
        await asyncio.wait_for(member.client.wait_ready(), 60)
    try:
        yield pool, list(workers), metrics
    finally:
        for member in members:
            await member.client.close()
        for worker in workers:
            await worker.stop()


def moved(metrics: GatewayMetrics) -> float | None:
    return metrics.registry.get_sample_value("kvstitch_moved_requests_total")


async def test_what_has_not_begun_moves_and_what_has_begun_ends_in_an_error(data: Path) -> None:
    slow = FakeWorker("", held=True)
    begun = FakeWorker("", token_delay_s=0.5)
    third = FakeWorker("")
    async with pooled(data, slow, begun, third) as (pool, _, metrics):

        async def run(sent: Generate) -> list[Event]:
            return [event async for event in pool.submit(sent)]

        sent: list[int] = []
        begun.on_token = lambda request, number: sent.append(number)
        waiting, streaming = (
            asyncio.create_task(run(request("first", 3))),
            asyncio.create_task(run(request("second", 500))),
        )
        await until_true(lambda: pool.members[1].requests and len(sent) > 1, "the second has begun")
        await until_true(lambda: slow.seen(Generate), "the first has arrived")
        assert [len(member.requests) for member in pool.members] == [1, 1, 0]
        for member in pool.members[:2]:
            member.client.disconnect("the worker was restarted")
        events = await asyncio.wait_for(waiting, 60)
        assert isinstance(events[-1], Done) and len(events) == 4
        assert moved(metrics) == 1
        events = await asyncio.wait_for(streaming, 60)
        assert isinstance(events[-1], Failed) and events[-1].code == "worker_unavailable"
        assert not pool.members[2].requests and moved(metrics) == 1


async def test_with_nobody_left_a_request_ends_in_an_error(data: Path) -> None:
    workers = [FakeWorker("", held=True) for _ in range(2)]
    async with pooled(data, *workers) as (pool, _, _metrics):

        async def run() -> list[Event]:
            return [event async for event in pool.submit(request("r", 3))]

        task = asyncio.create_task(run())
        await until_true(lambda: any(worker.seen(Generate) for worker in workers), "it has arrived")
        for member in pool.members:
            member.client.disconnect("gone")
        (event,) = await asyncio.wait_for(task, 60)
        assert isinstance(event, Failed) and event.code == "worker_unavailable"
        with pytest.raises(WorkerUnavailable):
            await anext(pool.submit(request("s")))
        with pytest.raises(WorkerUnavailable):
            await pool.purge(Purge("x", [0], [ChunkTokens(1, [1])]))


async def test_an_abort_goes_where_the_request_is(data: Path) -> None:
    workers = [FakeWorker("", token_delay_s=0.2) for _ in range(2)]
    async with pooled(data, *workers) as (pool, _, _metrics):
        streams = [pool.submit(request(name, 1000)) for name in ("r", "s")]
        for stream in streams:
            await anext(stream)
        pool.abort("s", "stop")
        pool.abort("unknown", "stop")
        rest = [event async for event in streams[1]]
        assert isinstance(rest[-1], Done) and rest[-1].finish_reason == "stop"
        await streams[0].aclose()
        assert workers[1].aborted == {"s": "stop"} and "s" not in workers[0].aborted
        assert not pool._open and not pool._aborts


async def test_precompute_is_spread_and_a_purge_reaches_all(data: Path) -> None:
    async with pooled(data, FakeWorker(""), FakeWorker("")) as (pool, workers, _metrics):
        chunks = [ChunkTokens(n, [n, n, n]) for n in range(40)]
        replies = [r async for r in pool.precompute(Precompute("p", [0], chunks))]
        assert sorted(reply.chunk_id for reply in replies) == list(range(40))
        assert all(10 < len(worker.stored) < 30 for worker in workers)
        assert sum(len(worker.stored) for worker in workers) == 40
        assert all(member.precompute_s == 0 for member in pool.members)
        purged = await pool.purge(Purge("x", [0], chunks))
        assert purged.copies == {"memory": 40}
        assert [len(worker.seen(Purge)) for worker in workers] == [1, 1]
        assert not any(worker.stored for worker in workers)


async def test_a_purge_leaves_out_who_has_ended_and_waits_for_who_may_hold_some(
    data: Path,
) -> None:
    async with pooled(data, FakeWorker(""), FakeWorker("")) as (pool, workers, _metrics):
        workers[1].unreached = ["redis"]
        lost = pool.members[0]
        supervisor = lost.supervisor
        assert supervisor is not None
        lost.client.disconnect("gone")
        assert lost.holds_nothing  # its supervisor has no process
        done = await pool.purge(Purge("x", [0], [ChunkTokens(1, [1])]))
        assert done.unreached == ["redis"] and not workers[0].seen(Purge)
        process = await asyncio.create_subprocess_exec("sleep", "60")
        try:
            supervisor._process = process
            lost.became_ready()
            assert not pool.members[0].holds_nothing  # silent, and alive
            with pytest.raises(WorkerUnavailable):
                await pool.purge(Purge("x", [0], [ChunkTokens(1, [1])]))
        finally:
            supervisor._process = None
            process.kill()
            await process.wait()


def test_several_statistics_are_one() -> None:
    def part(running: int, free: float, state: float) -> Stats:
        values = [
            ("kvstitch_gate_state", {"method": "pie"}, state),
            ("kvstitch_decode_steps_total", {}, 7.0),
        ]
        return Stats(values, running, 2 * running, free)

    found = all_workers.stats([part(1, 0.5, 2.0), part(2, 1.0, 0.0)])
    assert (found.running, found.waiting, found.pool_free) == (3, 6, 0.75)
    assert found.values == [("kvstitch_gate_state", {"method": "pie"}, 2.0)]


def test_several_purges_are_one() -> None:
    one = Purged("a", {"memory": 2, "ssd": 3}, ["redis"])
    other = Purged("b", {"memory": 1, "ssd": 0, "redis": 1})
    assert all_workers.purged([one, other]) == Purged(
        "a", {"memory": 3, "ssd": 3, "redis": 1}, ["redis"]
    )


def state(reason: str | None, *, draining: bool = False) -> WorkerState:
    return WorkerState(7, reason, None, None, None, draining=draining)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"kvstitch_{name}", labels)


def test_states_are_counted_when_they_are_asked_for() -> None:
    metrics, states = GatewayMetrics(), [state(None), state(None), state("it is starting")]
    count_by_state(metrics, lambda: states)
    counts = {"ready": 2, "draining": 0, "not_ready": 1}
    assert {s: value(metrics.registry, "workers", state=s) for s in counts} == counts
    states[:] = [state(None, draining=True), state(None)]
    counts = {"ready": 1, "draining": 1, "not_ready": 0}
    assert {s: value(metrics.registry, "workers", state=s) for s in counts} == counts


def test_gaps_are_counted_and_beginnings_are_not() -> None:
    metrics = GatewayMetrics()
    pool = WorkerPool([], "cost", metrics, slower_tiers=False, prefix_cache=False)

    def tell(number: int, *, snapshot: bool = False) -> None:
        pool.directory.apply(0, Holdings(number, [], [], snapshot, 0, WorkerLoad()))

    tell(1)  # its snapshot is still to come
    tell(2, snapshot=True)
    tell(3)
    assert value(metrics.registry, "directory_gaps_total") == 0
    tell(5)
    tell(6)  # the same gap
    assert value(metrics.registry, "directory_gaps_total") == 1
