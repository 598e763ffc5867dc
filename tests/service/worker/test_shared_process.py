"""A worker that runs by itself, as a process on an encrypted TCP socket: drain and leases."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from kvstitch.service.messages import wire
from kvstitch.service.messages.replies import Done, Failed, FromWorker, Ready, Stats, Tokens
from kvstitch.service.messages.requests import Generate, Hello, Method, Ping, Sampling, Shutdown
from kvstitch.service.messages.wire import PROTOCOL
from kvstitch.service.shared import fleet_secret
from kvstitch.service.shared.worker_settings import WorkerSettings
from tests.ports import free_port
from tests.service.worker.test_process import DOCUMENTS, START_S, Peer, spawn, tiers
from tests.service.worker.tiny import Q, S, random_model, tiny_config

SECRET = "0123456789abcdef" * 2
LEASE_S = 6.0  # a worker and a test that are busy must have their turns within it


class Gateway(Peer):
    """A peer that says Hello with a lease, and pings when it is told to."""

    def __init__(self, address: str, domain: str, lease_s: float) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        own = fleet_secret.curve_keys(SECRET, "gateway")
        self._socket.curve_secretkey, self._socket.curve_publickey = own.secret, own.public
        self._socket.curve_serverkey = fleet_secret.curve_keys(SECRET, "worker").public
        self._socket.connect(address)
        self.stats: Stats | None = None
        self.domain, self.lease_s = domain, lease_s

    def ready(self) -> Ready:
        self.send(Hello(self.domain, self.lease_s))
        assert self._socket.poll(START_S * 1000), "the worker did not start"
        message = self.receive()
        assert isinstance(message, Ready)
        return message

    def ping_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.send(Ping(self.domain, self.lease_s, self.next_stats().clock))


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    random_model(tiny_config("qwen3", "yarn")).save_pretrained(folder)
    return folder


@pytest.fixture
def settings(model_folder: Path, tmp_path: Path) -> WorkerSettings:
    return WorkerSettings(
        model=str(model_folder),
        address=f"tcp://127.0.0.1:{free_port()}",
        kv_dir=str(tmp_path / "kv"),
        fleet_secret=SECRET,
        shared=True,
        pool_tokens=400,
        max_running=1,
        threads=1,
    )


@contextmanager
def worker(
    settings: WorkerSettings, *domains: str, lease_s: float = 600.0
) -> Iterator[list[Gateway]]:
    process = spawn(settings)
    peers = [Gateway(settings.address, domain, lease_s) for domain in domains]
    for peer in peers:
        peer.process = process
    try:
        for peer in peers:
            assert peer.ready().protocol == PROTOCOL
        yield peers
    finally:
        for peer in peers:
            peer.close()
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_what_may_have_been_deleted_is_dropped_after_the_lease(settings: WorkerSettings) -> None:
    with worker(settings, "a", "b", lease_s=LEASE_S) as (a, b):
        b.lease_s = 600.0
        b.ping_for(0.1)
        a.ping_for(0.1)
        a.precompute()
        a.send(Shutdown())  # it is not one gateway's to end
        a.ping_for(1.5 * LEASE_S)
        _, done = a.generate("kept")
        assert tiers(done) == ["memory"] * 3
        end = time.monotonic() + START_S  # a is silent from here on
        while any(Path(settings.kv_dir).glob("??/??/*.safetensors")):
            assert time.monotonic() < end, "nothing was dropped"
            b.ping_for(0.2)
        _, done = b.generate("dropped")
        assert tiers(done) == ["cold"] * 3


@pytest.mark.parametrize("on_disk", [True, False], ids=["disk", "memory"])
def test_a_drain_gives_back_what_waits_and_ends_what_runs(
    settings: WorkerSettings, on_disk: bool
) -> None:
    """And the next process on the same folder knows how long what is there can be trusted."""
    settings = settings if on_disk else replace(settings, kv_dir="")
    with worker(settings, "a") as (a,):
        a.precompute()
        long = Sampling(max_tokens=200, temperature=2.0, seed=1)
        # So many that the worker is not through with them before it hears the signal.
        names = ["runs", *(f"waits{number}" for number in range(40))]
        for name in names:
            request = Generate(name, S, DOCUMENTS, Q, fusion=Method("vanilla"), sampling=long)
            a.send(request)
        first = a.receive()
        assert isinstance(first, Tokens)
        a.process.send_signal(signal.SIGTERM)
        ends: dict[str, FromWorker] = {}
        draining_first, last = False, None
        give_up_at = time.monotonic() + START_S
        while True:
            ended = a.process.poll() is not None
            if not a._socket.poll(200):
                if ended:
                    break
                assert time.monotonic() < give_up_at, "the worker does not end"
                continue
            message = wire.decode_from_worker(a._socket.recv())
            if isinstance(message, Stats):
                last = message
                if message.draining and not draining_first:
                    draining_first = names[-1] not in ends
                    a.send(Generate("late", S, DOCUMENTS, Q, fusion=Method("vanilla")))
            elif isinstance(message, Done | Failed):
                ends[message.id] = message
        assert draining_first, "gateways must know why something comes back"
        assert isinstance(ends["runs"], Done)
        # One after the other; "late" may come when nobody is there.
        begun = [name for name in names if isinstance(ends.get(name), Done)]
        assert begun == names[: len(begun)] and names[-1] not in begun
        for name in ends.keys() - set(begun):
            failed = ends[name]
            assert isinstance(failed, Failed) and failed.code == "overloaded"
        assert a.process.wait(START_S) == 0
        assert last is not None and last.draining and last.gone is not on_disk
    if not on_disk:
        return
    note = Path(settings.kv_dir) / ".lease"
    assert json.loads(note.read_text())["a"] < time.time() + 600
    assert any(Path(settings.kv_dir).glob("??/??/*.safetensors"))
    note.write_text(json.dumps({"a": time.time() - 1}))  # deletions may have been missed
    with worker(settings, "a") as (a,):
        _, done = a.generate("one")
        assert tiers(done) == ["cold"] * 3
