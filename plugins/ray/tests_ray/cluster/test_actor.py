"""A worker process is started, restarted, refused and drained; real processes and sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import pytest

from kvstitch.service.cli.serve import PreparedWorker
from kvstitch.service.errors import InvalidSetting, ModelRefused
from kvstitch.service.shared.worker_settings import WorkerSettings
from kvstitch_ray.cluster.actor import ClusterWorker, free_address
from kvstitch_ray.cluster.records import ActorState

FAKE = (sys.executable, "-m", "tests.fakes.worker")
LONG_S = 240.0


class Prepared:
    secret = ""

    def at(self, address: str) -> WorkerSettings:
        return WorkerSettings(model="m", address=address, kv_dir="")


@asynccontextmanager
async def supervised(
    *arguments: str, prepare: Callable[[], Prepared] = Prepared
) -> AsyncIterator[ClusterWorker]:
    worker = ClusterWorker(
        ActorState("kvstitch-worker-1"),
        cast("Callable[[], PreparedWorker]", prepare),
        partial(free_address, "127.0.0.1", None),
        command=(*FAKE, *arguments),
        backoff_s=(0.05, 0.1),
    )
    worker.start()
    try:
        yield worker
    finally:
        await worker.drain()


async def until(worker: ClusterWorker, phase: str, restarts: int = 0) -> ActorState:
    async with asyncio.timeout(LONG_S):
        while ((state := worker.state).phase, state.restarts) != (phase, restarts):
            await asyncio.sleep(0.005)
    return state


async def test_a_process_that_dies_comes_back_at_its_address() -> None:
    async with supervised() as worker:
        first = await until(worker, "ready")
        assert first.pid is not None and first.reason == ""
        os.kill(first.pid, signal.SIGKILL)
        again = await until(worker, "ready", restarts=1)
        assert again.address == first.address
        assert again.pid != first.pid


async def test_a_drained_process_is_not_started_again() -> None:
    async with supervised() as worker:
        pid = (await until(worker, "ready")).pid
        assert pid is not None
        await worker.drain()
        assert (worker.state.phase, worker.state.pid, worker.state.address) == ("ended", None, "")
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_refusal_is_told_and_not_tried_again() -> None:
    async with supervised("--refuse", "no such adapter") as worker:
        refused = await until(worker, "refused")
        assert (refused.reason, refused.restarts, refused.address) == ("no such adapter", 0, "")


async def test_a_model_that_cannot_be_had_is_a_refusal() -> None:
    def prepare() -> Prepared:
        raise ModelRefused("there is no model x: give another")

    async with supervised(prepare=prepare) as worker:
        assert (await until(worker, "refused")).reason == "there is no model x: give another"


async def test_a_worker_can_be_drained_before_it_has_a_model() -> None:
    may_go_on = asyncio.Event()
    loop = asyncio.get_running_loop()

    def prepare() -> Prepared:
        asyncio.run_coroutine_threadsafe(may_go_on.wait(), loop).result(LONG_S)
        return Prepared()

    async with supervised(prepare=prepare) as worker:
        await until(worker, "preparing")
        draining = asyncio.create_task(worker.drain())
        await asyncio.sleep(0)
        may_go_on.set()
        await draining
        assert (worker.state.phase, worker.state.pid) == ("ended", None)


def test_ports_are_taken_in_their_range_and_again_after_a_restart() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidSetting, match=f"all ports {port}-{port} .*--ports"):
            free_address("127.0.0.1", (port, port))
        any_port = free_address("127.0.0.1", None, f"tcp://127.0.0.1:{port}")
        assert any_port != f"tcp://127.0.0.1:{port}"
    assert free_address("127.0.0.1", (port, port)) == f"tcp://127.0.0.1:{port}"
    assert free_address("127.0.0.1", None, any_port) == any_port
