"""The worker as a real process on a real socket: start, answer, restart, refuse, end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import zmq

from kvstitch.service.messages import wire
from kvstitch.service.messages.replies import (
    Done,
    Failed,
    FromWorker,
    Precomputed,
    Purged,
    Ready,
    Stats,
    Tokens,
)
from kvstitch.service.messages.requests import (
    Abort,
    ChunkTokens,
    Generate,
    Hello,
    Message,
    Method,
    Precompute,
    Purge,
    Sampling,
)
from kvstitch.service.shared.worker_settings import WorkerSettings
from tests import preloaded
from tests.service.worker.tiny import D1, D2, D3, Q, S, random_model, tiny_config

DOCUMENTS = [ChunkTokens(1, D1), ChunkTokens(2, D2), ChunkTokens(3, D3)]
START_S = 240  # of a process that loads torch beside many others


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    random_model(tiny_config("qwen3", "yarn")).save_pretrained(folder)
    return folder


class Peer:
    """A gateway's side of the socket."""

    def __init__(self, address: str, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(address)
        self.stats: Stats | None = None

    def send(self, message: Message) -> None:
        self._socket.send(wire.encode(message))

    def receive(self) -> FromWorker:
        """The next message that is not Stats."""
        while True:
            assert self._socket.poll(START_S * 1000), "the worker did not answer"
            message = wire.decode_from_worker(self._socket.recv())
            if not isinstance(message, Stats):
                return message
            self.stats = message

    def next_stats(self) -> Stats:
        while True:
            assert self._socket.poll(START_S * 1000), "no heartbeat"
            message = wire.decode_from_worker(self._socket.recv())
            if isinstance(message, Stats):
                return message

    def ready(self) -> Ready:
        self.send(Hello())
        message = self.receive()
        assert isinstance(message, Ready)
        return message

    def generate(self, name: str, **changes: object) -> tuple[list[int], Done]:
        request = Generate(
            id=name,
            system=S,
            documents=DOCUMENTS,
            question=Q,
            fusion=Method("pie"),
            sampling=Sampling(max_tokens=5),
        )
        self.send(msgspec.structs.replace(request, **changes))
        tokens: list[int] = []
        while True:
            message = self.receive()
            if isinstance(message, Tokens):
                tokens += [item.token for item in message.items if item.id == name]
            else:
                assert isinstance(message, Done), message
                return tokens, message

    def precompute(self) -> list[str]:
        self.send(Precompute("job", S, DOCUMENTS))
        news = [self.receive() for _ in DOCUMENTS]
        return [n.status for n in news if isinstance(n, Precomputed)]

    def close(self) -> None:
        self._context.destroy(linger=0)


def spawn(settings: WorkerSettings) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [*preloaded.python(), "-m", "kvstitch.service.worker"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert process.stdin is not None
    process.stdin.write(settings.to_json().encode() + b"\n")
    process.stdin.flush()
    return process


@contextmanager
def worker(settings: WorkerSettings) -> Iterator[Peer]:
    process = spawn(settings)
    peer = Peer(settings.address, process)
    try:
        yield peer
    finally:
        peer.close()
        process.kill()
        process.communicate()


@pytest.fixture
def settings(model_folder: Path, tmp_path: Path) -> WorkerSettings:
    """Without the planner, which computes what a busy machine reads late: another answer."""
    return WorkerSettings(
        model=str(model_folder),
        address=f"ipc://{tmp_path}/w",
        kv_dir=str(tmp_path / "kv"),
        pool_tokens=400,
        threads=1,
        planner=False,
    )


def tiers(done: Done) -> list[str]:
    return [d.tier for d in done.report.documents]


def test_answers_and_counts(settings: WorkerSettings) -> None:
    with worker(settings) as peer:
        ready = peer.ready()
        assert ready.model.family == "qwen3" and ready.model.layers == 5
        assert {"vanilla", "full_reuse", "pie", "a3"} <= {f.name for f in ready.fusion}
        ratio = next(f for f in ready.fusion if f.name == "a3").parameters["ratio"]
        assert (ratio["ge"], ratio["le"], ratio["default"]) == (0, 1, 0.15)
        assert peer.precompute() == ["stored"] * 3
        tokens, done = peer.generate("one")
        assert len(tokens) == done.report.completion_tokens
        assert tiers(done) == ["memory"] * 3
        peer.next_stats()
        values = {(n, tuple(sorted(ls.items()))): v for n, ls, v in peer.next_stats().values}
        assert values["kvstitch_store_new_keys_total", ()] == 4
        hits = ("kvstitch_tier_operations_total",
                (("op", "read"), ("outcome", "hit"), ("tier", "memory")))  # fmt: skip
        assert values[hits] == 4
        # A call that is given up ends before all of its chunks are computed.
        peer.send(
            Precompute(
                "many",
                S,
                [ChunkTokens(n, [1 + n % 90, 1 + n // 90, *range(9, 60)]) for n in range(200)],
            )
        )
        peer.send(Abort("many", "disconnect"))
        news = []
        while not isinstance(last := peer.receive(), Failed):
            news.append(last)
        assert (last.id, last.code) == ("many", "overloaded") and len(news) < 200
        assert peer.generate("two")[0] == tokens


def test_kill_nine_loses_nothing_that_was_stored(settings: WorkerSettings) -> None:
    with worker(settings) as peer:
        peer.ready()
        peer.precompute()
        before, _ = peer.generate("one")
        peer.process.kill()
        peer.process.wait()
    with worker(settings) as peer:
        peer.ready()
        after, done = peer.generate("two")
        assert after == before
        assert tiers(done) == ["ssd"] * 3


def test_the_store_outlives_a_change_of_model_without_mixing_them(
    settings: WorkerSettings, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    random_model(tiny_config("qwen3", "yarn"), seed=1).save_pretrained(other)
    with worker(settings) as peer:
        peer.ready()
        peer.precompute()
    with worker(replace(settings, model=str(other))) as peer:
        peer.ready()
        _, done = peer.generate("one")
        assert tiers(done) == ["cold"] * 3
    with worker(settings) as peer:
        peer.ready()
        _, done = peer.generate("two")
        assert tiers(done) == ["ssd"] * 3


def test_sigterm_finishes_what_runs(settings: WorkerSettings) -> None:
    with worker(settings) as peer:
        peer.ready()
        long = Sampling(max_tokens=150, temperature=2.0, seed=1)
        peer.send(Generate("long", S, DOCUMENTS, Q, fusion=Method("vanilla"), sampling=long))
        tokens = 0
        ended = None
        while ended is None:
            message = peer.receive()
            if isinstance(message, Tokens):
                if not tokens:
                    peer.process.send_signal(signal.SIGTERM)
                tokens += len(message.items)
            else:
                ended = message
        assert isinstance(ended, Done)
        assert ended.report.completion_tokens == tokens > 1
        assert peer.process.wait(START_S) == 0


def test_it_ends_with_its_parent(settings: WorkerSettings) -> None:
    with worker(settings) as peer:
        peer.ready()
        assert peer.process.stdin is not None
        peer.process.stdin.close()
        assert peer.process.wait(START_S) == 0
        peer.process.stdin = None


def test_purge_removes_every_copy(settings: WorkerSettings) -> None:
    with worker(settings) as peer:
        peer.ready()
        peer.precompute()
        peer.send(Purge("p", S, DOCUMENTS[:1]))
        assert peer.receive() == Purged("p", {"memory": 1, "ssd": 1})
        _, done = peer.generate("one")
        assert tiers(done) == ["cold", "memory", "memory"]


def test_bad_requests_fail_and_garbage_is_ignored(settings: WorkerSettings) -> None:
    with worker(settings) as peer:
        peer.ready()
        peer._socket.send(b"not msgpack")
        peer.send(Generate("bad", S, DOCUMENTS, Q, fusion=Method("a3", {"ratio": 2})))
        answer = peer.receive()
        assert isinstance(answer, Failed)
        assert (answer.id, answer.code, answer.field) == ("bad", "invalid_request", "fusion.ratio")
        tokens, _ = peer.generate("good")
        assert tokens


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type spiral"),
        ({"model_type": "gpt2"}, "model_type gpt2"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ],
    ids=["rope", "family", "partial"],
)
def test_a_model_that_is_not_served_is_refused_in_a_sentence(
    settings: WorkerSettings, tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    folder = tmp_path / "model"
    random_model(tiny_config("llama")).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    process = spawn(replace(settings, model=str(folder)))
    _, stderr = process.communicate(timeout=START_S)
    assert process.returncode == 3
    assert why in stderr.decode().strip().splitlines()[-1]
