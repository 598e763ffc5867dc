"""The worker's client alone, against the fake over a real socket."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kvstitch.encryption.keyring import DataKey, Keyring
from kvstitch.service.errors import WorkerUnavailable
from kvstitch.service.gateway.worker_client.client import WorkerClient
from kvstitch.service.messages.replies import Done, Failed, TokenItem
from kvstitch.service.messages.requests import (
    Abort,
    ChunkTokens,
    Generate,
    Keys,
    Method,
    Precompute,
    Purge,
    Sampling,
)
from tests.fakes.worker import FakeWorker


def request(name: str, tokens: int = 5) -> Generate:
    documents = [ChunkTokens(1, [10, 11, 12])]
    sampling = Sampling(max_tokens=tokens)
    return Generate(name, [0], documents, [5], Method("pie"), sampling=sampling)


@asynccontextmanager
async def connected(
    data: Path,
    worker: FakeWorker | None = None,
    heartbeat_timeout_s: float = 3.0,
    keys: Keyring | None = None,
) -> AsyncIterator[tuple[WorkerClient, FakeWorker]]:
    worker = worker or FakeWorker("")
    worker.address = f"ipc://{data}/w.sock"
    client = WorkerClient(heartbeat_timeout_s=heartbeat_timeout_s, hello_every_s=0.05, keys=keys)
    await worker.start()
    client.connect(worker.address)
    await asyncio.wait_for(client.wait_ready(), 30)
    try:
        yield client, worker
    finally:
        await client.close()
        await worker.stop()


async def test_every_request_ends_in_exactly_one_done(data: Path) -> None:
    async with connected(data, FakeWorker("", token_delay_s=0.001)) as (client, _):

        async def one(number: int) -> None:
            events = [e async for e in client.submit(request(f"r{number}", 1 + number))]
            tokens = [e.token for e in events[:-1] if isinstance(e, TokenItem)]
            assert tokens == [(10, 11, 12)[i % 3] for i in range(1 + number)]
            assert isinstance(events[-1], Done) and events[-1].finish_reason == "length"

        await asyncio.gather(*(one(number) for number in range(50)))
        assert client.stats is None or client.stats.waiting == 0


async def test_leaving_early_aborts(data: Path) -> None:
    async with connected(data, FakeWorker("", token_delay_s=0.01)) as (client, worker):
        stream = client.submit(request("r", 1000))
        assert isinstance(await anext(stream), TokenItem)
        await stream.aclose()
        task = asyncio.create_task(anext(client.submit(request("s", 1000))))
        await asyncio.sleep(0)
        task.cancel()
        while len(worker.seen(Abort)) < 2:
            await asyncio.sleep(0.01)
        assert {m.id for m in worker.received if isinstance(m, Abort)} == {"r", "s"}


async def test_silence_fails_what_is_open_and_recovers(data: Path) -> None:
    async with connected(data, FakeWorker("", token_delay_s=0.05)) as (client, worker):
        stream = client.submit(request("r", 1000))
        await anext(stream)
        await worker.stop()
        rest = [e async for e in stream]
        assert isinstance(rest[-1], Failed) and rest[-1].code == "worker_unavailable"
        with pytest.raises(WorkerUnavailable):
            client.require()
        with pytest.raises(WorkerUnavailable):
            await anext(client.submit(request("s")))
        with pytest.raises(WorkerUnavailable):
            await client.purge(Purge("x", [0], [ChunkTokens(1, [1])]))
        await worker.start()
        await asyncio.wait_for(client.wait_ready(), 30)
        assert [e async for e in client.submit(request("t", 2))]


async def test_a_long_prefill_is_no_silence(data: Path) -> None:
    async with connected(data, FakeWorker("", prefill_delay_s=2.5), 2.0) as (client, _):
        events = [e async for e in client.submit(request("r", 1))]
        assert isinstance(events[-1], Done)


async def test_a_gateway_that_stood_still_blames_no_worker(data: Path) -> None:
    async with connected(data, heartbeat_timeout_s=2.0) as (client, _):
        ready = client.require()
        time.sleep(2.5)
        await asyncio.sleep(0.3)
        assert client.require() is ready


async def test_precompute_and_purge(data: Path) -> None:
    async with connected(data) as (client, worker):
        chunks = [ChunkTokens(i, [i, i]) for i in range(3)]
        replies = [r async for r in client.precompute(Precompute("p", [0], chunks))]
        assert [(r.chunk_id, r.status) for r in replies] == [(i, "stored") for i in range(3)]
        again = [r.status async for r in client.precompute(Precompute("p", [0], chunks[:1]))]
        assert again == ["present"]
        purged = await client.purge(Purge("x", [0], chunks[:2]))
        assert (purged.copies, purged.unreached) == ({"memory": 2}, [])
        assert worker.stored == {(2, 2)}
        assert [r async for r in client.precompute(Precompute("p", [0], []))] == []


async def test_a_worker_has_a_tenants_key_before_it_stores_for_it(data: Path) -> None:
    def make(tenant: str) -> list[DataKey]:
        return [] if tenant == "refused" else [DataKey(tenant.encode() * 4, tenant, bytes(32))]

    async with connected(data, keys=Keyring(make=make)) as (client, worker):
        chunks = [ChunkTokens(1, [1, 1])]
        assert [r async for r in client.precompute(Precompute("p", [0], chunks, tenant="acme"))]
        before = [m for m in worker.received if isinstance(m, Keys | Precompute)]
        assert isinstance(before[-2], Keys) and [k.owner for k in before[-2].keys] == ["acme"]
        with pytest.raises(WorkerUnavailable, match="'refused' has no key"):
            _ = [r async for r in client.precompute(Precompute("q", [0], chunks, tenant="refused"))]


async def test_chunks_that_nobody_waits_for_are_given_up(data: Path) -> None:
    """Else the worker would store them after their document was deleted."""
    async with connected(data, FakeWorker("", chunk_delay_s=0.02)) as (client, worker):
        chunks = [ChunkTokens(i, [i, i]) for i in range(4)]
        replies = client.precompute(Precompute("p", [0], chunks))
        await anext(replies)
        await replies.aclose()
        while not worker.seen(Abort):
            await asyncio.sleep(0.01)
        (call,) = (m.id for m in worker.received if isinstance(m, Precompute))
        assert [m.id for m in worker.received if isinstance(m, Abort)] == [call]
        assert len([r async for r in client.precompute(Precompute("again", [0], chunks))]) == 4
        await client.purge(Purge("x", [0], chunks))  # whatever was sent before has come
        assert len(worker.seen(Abort)) == 1


async def test_garbage_from_the_socket_is_dropped(data: Path) -> None:
    async with connected(data) as (client, worker):
        for peer in worker._peers:
            await worker._socket.send_multipart([peer, b"\x00garbage"])
        assert [e async for e in client.submit(request("r", 1))]


async def test_connections_that_break_while_they_are_dropped_stop_no_other() -> None:
    client = WorkerClient(hello_every_s=0.01)
    try:
        for _ in range(50):
            worker = FakeWorker("tcp://127.0.0.1:0")
            await worker.start()
            client.connect(worker.address)
            await asyncio.wait_for(client.wait_ready(), 60)
            dropped = asyncio.create_task(worker.stop())
            await asyncio.sleep(0)
            client.disconnect("another is connected")
            await dropped
    finally:
        await client.close()


def test_closing_waits_for_what_a_disconnect_has_cancelled() -> None:
    """Over TCP a task watches the socket with one of its own; a context ends when all are closed,
    and until then it would block the event loop."""

    async def leave() -> None:
        client = WorkerClient()
        client.connect("tcp://127.0.0.1:9")
        await asyncio.sleep(0.05)
        client.disconnect("gone")
        await client.close()

    leaving = threading.Thread(target=lambda: asyncio.run(leave()), daemon=True)
    leaving.start()
    leaving.join(240)
    assert not leaving.is_alive()
