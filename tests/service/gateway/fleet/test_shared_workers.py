"""A gateway whose workers run by themselves: fakes on real TCP sockets come, leave and drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvstitch.service.errors import WorkerUnavailable
from kvstitch.service.gateway.fleet.member import Member
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.gateway.worker_client.client import Event
from kvstitch.service.gateway.workers import ProcessOptions, Workers, label
from kvstitch.service.messages.replies import Done, Failed
from kvstitch.service.messages.requests import ChunkTokens, Hello, Ping, Purge, Shutdown
from kvstitch.service.settings import load
from kvstitch.service.shared.worker_settings import WorkerSettings
from tests.fakes.worker import READY, FakeWorker
from tests.service.gateway.rig import until_true
from tests.service.gateway.worker_client.test_client import request

SECRET = "0123456789abcdef" * 2


class Listed:
    """A source of addresses that the test writes."""

    def __init__(self) -> None:
        self._lists: asyncio.Queue[list[str]] = asyncio.Queue()

    def write(self, *workers: FakeWorker) -> None:
        self._lists.put_nowait([worker.address for worker in workers])

    async def watch(self) -> AsyncIterator[list[str]]:
        while True:
            yield await self._lists.get()


class Fleet:
    def __init__(self, data: Path, **settings: Any) -> None:
        self.listed = Listed()
        self.counts: list[int] = []
        self.metrics = GatewayMetrics()
        given = {"fleet_secret": SECRET, "worker_lease_s": 5, "data_dir": data, **settings}
        self.shared = Workers(
            load(worker_addresses="tcp://127.0.0.1:1", routing="round_robin", **given),
            ProcessOptions(heartbeat_timeout_s=1.5),
            self.metrics,
            worker_settings=lambda number, address: WorkerSettings("", "", ""),
            on_refused=print,
            deletions=lambda: "of this database",
            on_count=self.counts.append,
            source=self.listed.watch,
        )
        assert self.shared._pool is not None
        self.pool = self.shared._pool

    def ready(self) -> int:
        return sum(state.reason is None for state in self.shared.states())

    async def run(self, name: str, tokens: int = 3) -> list[Event]:
        return [event async for event in self.pool.submit(request(name, tokens))]


@asynccontextmanager
async def fleet(data: Path, *workers: FakeWorker, **settings: Any) -> AsyncIterator[Fleet]:
    made = Fleet(data, **settings)
    try:
        for worker in workers:
            worker.address, worker.secret = "tcp://127.0.0.1:0", worker.secret or SECRET
            await worker.start()
        await made.shared.start()
        made.listed.write(*workers)
        yield made
    finally:
        await made.shared.close()
        for worker in workers:
            await worker.stop()


async def test_workers_come_and_leave_and_no_gateway_ends_them(data: Path) -> None:
    first, second = FakeWorker(""), FakeWorker("")
    async with fleet(data, first, second) as made:
        await until_true(lambda: made.ready() == 2, "both are ready")
        assert made.counts[-1] == 2
        for number in range(4):
            assert isinstance((await made.run(f"r{number}"))[-1], Done)
        await until_true(lambda: first.seen(Ping) and second.seen(Ping), "leases are renewed")
        hello = first.seen(Hello)[0]
        assert isinstance(hello, Hello) and hello.lease_s == 5 and "database" not in hello.domain
        names = {str(sample.labels["worker"]) for sample in _samples(made.metrics)}
        assert names == {label(first.address), label(second.address)}
        made.listed.write(second)
        await until_true(lambda: len(made.shared.states()) == 1, "the first has left")
        assert made.ready() == 1 and made.counts[-1] == 1
        assert isinstance((await made.run("after"))[-1], Done)
        assert {str(sample.labels["worker"]) for sample in _samples(made.metrics)} <= names
        made.listed.write(second, first)
        await until_true(lambda: made.ready() == 2, "it is back")
        assert {member.number for member in made.pool.members} == {1, 2}
    assert not first.seen(Shutdown) and not second.seen(Shutdown)


def _samples(metrics: GatewayMetrics) -> list[Any]:
    return [
        sample
        for family in metrics.worker.collect()
        for sample in family.samples
        if sample.name == "kvstitch_decode_steps_total"
    ]


async def test_what_a_worker_that_leaves_had_not_begun_moves(data: Path) -> None:
    slow, other = FakeWorker("", held=True), FakeWorker("")
    async with fleet(data, slow, other) as made:
        await until_true(lambda: made.ready() == 2, "both are ready")
        running = asyncio.create_task(made.run("r"))
        await until_true(lambda: made.pool.members[0].requests, "it is there")
        made.listed.write(other)
        assert isinstance((await asyncio.wait_for(running, 60))[-1], Done)


async def test_a_connection_that_breaks_is_noticed_at_once(data: Path) -> None:
    """Not after the heartbeat's silence: what was under way is lost with the connection."""
    slow, other = FakeWorker("", held=True), FakeWorker("")
    async with fleet(data, slow, other) as made:
        made.shared._options = ProcessOptions(heartbeat_timeout_s=600)
        await until_true(lambda: made.ready() == 2, "both are ready")
        running = asyncio.create_task(made.run("r"))
        await until_true(lambda: made.pool.members[0].requests, "it is there")
        await slow.stop()
        assert isinstance((await asyncio.wait_for(running, 60))[-1], Done)
        slow.held = False
        await slow.start()  # at the same address
        await until_true(lambda: made.ready() == 2, "it is back")


async def test_a_worker_that_drains_gets_nothing_new_and_its_returns_move_on(data: Path) -> None:
    first, second, third = FakeWorker(""), FakeWorker(""), FakeWorker("")
    async with fleet(data, first, second, third) as made:
        await until_true(lambda: made.ready() == 3, "all are ready")
        # They give back what arrives, also before the gateway has heard that they drain.
        first.draining = second.draining = True
        await until_true(lambda: sum(m.draining for m in made.pool.members) == 2, "it has heard")
        events = [await made.run(f"r{number}") for number in range(3)]
        assert all(isinstance(each[-1], Done) for each in events)
        assert made.metrics.registry.get_sample_value("kvstitch_moved_requests_total") == 0
        assert [state.draining for state in made.shared.states()] == [True, True, False]
        third.draining = True
        await until_true(lambda: all(m.draining for m in made.pool.members), "it has heard")
        with pytest.raises(WorkerUnavailable, match="about to end"):
            await made.run("nobody")


async def test_returns_of_workers_that_drain_do_not_count_as_moves(data: Path) -> None:
    workers = [FakeWorker("", heartbeat_s=0.05, held=True) for _ in range(4)]
    async with fleet(data, *workers) as made:
        await until_true(lambda: made.ready() == 4, "all are ready")

        async def drain(member: Member) -> None:
            """As a real one: tell first, then give back."""
            worker = workers[member.number]
            await until_true(lambda: worker._running, "it has arrived")
            worker.draining = True
            await until_true(lambda: member.draining, "it has heard")
            for id, task in list(worker._running.items()):
                task.cancel()
                for peer in worker._peers:
                    await worker._send(peer, Failed(id, "overloaded", "shutting down"))

        running = asyncio.create_task(made.run("r"))
        for _ in range(3):
            await until_true(
                lambda: any(m.requests for m in made.pool.members if not m.draining), "it"
            )
            at = next(m for m in made.pool.members if m.requests)
            await drain(at)
        for worker in workers:
            worker.held = False
        assert isinstance((await asyncio.wait_for(running, 60))[-1], Done)
        assert made.metrics.registry.get_sample_value("kvstitch_moved_requests_total") == 3


async def test_who_speaks_another_protocol_or_serves_another_model_is_refused_by_name(
    data: Path,
) -> None:
    model = replace(READY.model, name="other", fingerprint="f" * 16)
    good = FakeWorker("")
    newer = FakeWorker("", ready=msgspec.structs.replace(READY, protocol=99))
    other = FakeWorker("", ready=msgspec.structs.replace(READY, model=model))
    async with fleet(data, good, newer, other) as made:
        made.listed.write(good)
        await until_true(lambda: made.ready() == 1, "the first is ready")
        made.listed.write(good, newer, other)
        await until_true(lambda: "serves" in _reason(made, other), "the other model is refused")
        assert "other (ffff" in _reason(made, other) and "fake (0000" in _reason(made, other)
        await until_true(lambda: "protocol" in _reason(made, newer), "the protocol is refused")
        assert "99" in _reason(made, newer) and "1" in _reason(made, newer)
        assert isinstance((await made.run("r"))[-1], Done)


def _reason(made: Fleet, worker: FakeWorker) -> str:
    return next((s.reason or "" for s in made.shared.states() if s.address == worker.address), "")


async def test_with_another_secret_the_reason_says_so(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstitch.service.gateway.worker_client.connection.UNHEARD_S", 0.3)
    worker = FakeWorker("", secret="f" * 32)
    async with fleet(data, worker) as made:
        await until_true(lambda: "KVSTITCH_FLEET_SECRET" in made.pool.reason, "it says so")
        assert worker.address in made.pool.reason and not worker.received
        with pytest.raises(WorkerUnavailable, match="KVSTITCH_FLEET_SECRET"):
            made.pool.require()


async def test_an_address_that_others_reach_is_left_alone_without_a_secret(data: Path) -> None:
    worker = FakeWorker("")
    async with fleet(data, fleet_secret="") as made:
        worker.address = "tcp://192.0.2.1:5700"  # of the documentation: nobody is there
        made.listed.write(worker)
        await until_true(lambda: "KVSTITCH_FLEET_SECRET" in _reason(made, worker), "it is refused")


async def test_a_deletion_waits_for_who_may_hold_some(data: Path) -> None:
    there, silent = FakeWorker(""), FakeWorker("")
    async with fleet(data, there, silent) as made:
        known = made.shared._known
        assert known is not None
        known._clock = lambda: 0.0  # no lease ends meanwhile
        await until_true(lambda: made.ready() == 2, "both are ready")
        chunks = [ChunkTokens(1, [1])]
        assert (await made.pool.purge(Purge("x", [0], chunks))).copies == {"memory": 0}
        silent._tasks[1].cancel()  # no heartbeat, as if the network were cut
        silent._tasks[0].cancel()
        await until_true(lambda: made.ready() == 1, "its silence is noticed")
        with pytest.raises(WorkerUnavailable):  # listed: it must answer
            await made.pool.purge(Purge("x", [0], chunks))
        made.listed.write(there)
        await until_true(lambda: len(made.pool.members) == 1, "it is not listed any more")
        with pytest.raises(WorkerUnavailable, match=silent.address):
            await made.pool.purge(Purge("x", [0], chunks))
        assert len(there.seen(Purge)) == 3  # it has deleted meanwhile
        # Its lease is over, and the worker has dropped what only it holds.
        known._clock = lambda: 1e9
        assert (await made.pool.purge(Purge("x", [0], chunks))).unreached == []
