"""A fake worker: speaks the real protocol over a real socket, but has no model.

Its answers are deterministic: the ids of `answer(request)`, by default those of the first
document, repeated. It remembers which chunks were precomputed and reports them as loaded from
memory. Its fields switch delays, crashes, silence and refusals on, and hold it until
a test goes on. It serves tests, and lets you try the gateway without weights:

    echo '{"model": …, "address": …, "kv_dir": ""}' | python -m tests.fakes.worker
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

import zmq
import zmq.asyncio

from kvstitch.service.errors import Overloaded
from kvstitch.service.gateway.worker_client.supervisor import REFUSED
from kvstitch.service.messages import wire
from kvstitch.service.messages.replies import (
    Done,
    Explained,
    Failed,
    GateState,
    GateStates,
    ModelInfo,
    OfferedMethod,
    Precomputed,
    Purged,
    Ready,
    Stats,
    TokenItem,
    TokenLogprobs,
    Tokens,
)
from kvstitch.service.messages.reports import Forecast, Report, SegmentForecast, SegmentReport
from kvstitch.service.messages.requests import (
    Abort,
    AskGate,
    ChunkTokens,
    ColdMode,
    Explain,
    Generate,
    Hello,
    Message,
    Ping,
    Precompute,
    Prefetch,
    Purge,
    Shutdown,
    ToWorker,
)
from kvstitch.service.shared import fleet_secret
from kvstitch.service.shared.worker_settings import WorkerSettings

RATIO = {"type": "number", "default": 0.15, "doc": "share to recompute", "ge": 0, "le": 1}
BUDGET = {"type": "integer", "default": 1024, "doc": "entries kept per head", "ge": 1}
READY = Ready(
    model=ModelInfo("fake", "0" * 16, "llama", 4, 2, 32, "float32", 2048, 1024, "raw", "cpu"),
    fusion=[
        OfferedMethod(name="a3", doc="Attention-aware.", parameters={"ratio": RATIO}),
        OfferedMethod(name="pie", doc="Positions only.", parameters={}),
        OfferedMethod(name="question_scout", doc="Question-aware.", parameters={"ratio": RATIO}),
        OfferedMethod(name="vanilla", doc="Full prefill.", parameters={}),
    ],
    eviction=[OfferedMethod(name="snapkv", doc="Window attention.", parameters={"budget": BUDGET})],
    pool_tokens=8192,
)


def repeat_first_document(request: Generate) -> list[int]:
    """The default answer: the ids of the first document, as often as max_tokens allows."""
    ids = request.documents[0].ids if request.documents else request.question
    return list(islice(cycle(ids), request.sampling.max_tokens))


def stored_key(chunk: ChunkTokens) -> tuple[int, ...]:
    """What tells a stored chunk from others: its ids, and those of what it stands behind."""
    prefixes = (token for prefix in chunk.prefixes for ids in prefix for token in (*ids, -1))
    return (*prefixes, *chunk.ids)


@dataclass
class FakeWorker:
    """A worker at `address`, between `start()` and `stop()`; its fields may change meanwhile."""

    address: str
    ready: Ready = READY
    answer: Callable[[Generate], Sequence[int]] = repeat_first_document
    chunk_delay_s: float = 0.0
    token_delay_s: float = 0.0
    prefill_delay_s: float = 0.0
    held: bool = False  # what is asked waits at the next token, until this is False again
    chunks_held: bool = False  # the same of chunks
    heartbeat_s: float = 0.2
    max_running: int = 1_000
    secret: str = ""  # of the fleet; over TCP the socket then needs it
    draining: bool = False  # take nothing new
    refuse: Failed | None = None  # answer every Generate with this (its id is filled in)
    on_token: Callable[[Generate, int], None] = lambda request, number: None
    on_chunk: Callable[[ChunkTokens], None] = lambda chunk: None
    on_purge: Callable[[Purge], None] = lambda call: None
    gate: list[GateState] = field(default_factory=list)
    stored: set[tuple[int, ...]] = field(default_factory=set)
    unreached: list[str] = field(default_factory=list)  # tiers that do not answer a purge
    received: list[ToWorker] = field(default_factory=list)
    aborted: dict[str, str] = field(default_factory=dict)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if fleet_secret.is_encrypted(self.address, self.secret):
            keys = fleet_secret.curve_keys(self.secret, "worker")
            self._socket.curve_secretkey, self._socket.curve_publickey = keys.secret, keys.public
            self._socket.curve_server = True
        self._socket.bind(self.address)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._peers: set[bytes] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(self.max_running)
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._beat())]

    async def stop(self) -> None:
        """Vanish at once, as a crash does."""
        if self._context.closed:
            return
        tasks = [*self._tasks, *self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()
        self._context.term()

    def seen(self, kind: type[Message]) -> list[ToWorker]:
        """The messages of a kind received so far."""
        return [message for message in self.received if isinstance(message, kind)]

    async def _listen(self) -> None:
        while True:
            peer, data = await self._socket.recv_multipart()
            message = wire.decode_to_worker(data)
            self.received.append(message)
            await self._handle(peer, message)

    async def _handle(self, peer: bytes, message: ToWorker) -> None:
        match message:
            case Hello():
                self._peers.add(peer)
                await self._send(peer, self.ready)
            case Generate():
                task = asyncio.create_task(self._generate(peer, message))
                self._running[message.id] = task
                task.add_done_callback(lambda _: self._running.pop(message.id, None))
            case Explain(request):
                await self._send(peer, self._explain(request))
            case Abort(request_id, reason):
                if request_id in self._running:
                    self.aborted[request_id] = reason
            case Precompute():
                for chunk in message.documents:
                    await asyncio.sleep(self.chunk_delay_s)
                    while self.chunks_held:
                        await asyncio.sleep(0.01)
                    await self._send(peer, self._precompute(message.id, chunk))
            case Purge():
                self.on_purge(message)
                gone = {stored_key(chunk) for chunk in message.documents} & self.stored
                self.stored -= gone
                copies = {"memory": len(gone)}
                await self._send(peer, Purged(message.id, copies, list(self.unreached)))
            case AskGate():
                if message.reset is not None:
                    self.gate = [s for s in self.gate if message.reset not in ("", s.fusion.name)]
                await self._send(peer, GateStates(message.id, True, self.gate))
            case Prefetch() | Ping():
                pass
            case Shutdown():
                await asyncio.gather(*self._running.values())
                self.stopped.set()

    def _precompute(self, call: str, chunk: ChunkTokens) -> Precomputed:
        self.on_chunk(chunk)
        status = "present" if stored_key(chunk) in self.stored else "stored"
        self.stored.add(stored_key(chunk))
        return Precomputed(call, chunk.chunk_id, status, 1024 * len(chunk.ids), 0.001)

    async def _generate(self, peer: bytes, request: Generate) -> None:
        if self.draining:
            return await self._send(peer, Failed(request.id, Overloaded.code, "shutting down"))
        if self.refuse is not None:
            refused = Failed(request.id, self.refuse.code, self.refuse.message, self.refuse.field)
            return await self._send(peer, refused)
        async with self._slots:
            await self._pause(request.id, self.prefill_delay_s)
            sent, reason = 0, "length"
            for token in self.answer(request):
                if request.id in self.aborted:
                    reason = self.aborted[request.id]
                    break
                self.on_token(request, sent)
                item = TokenItem(request.id, token, _logprobs(request, token))
                await self._send(peer, Tokens([item]))
                sent += 1
                await self._pause(request.id, self.token_delay_s)
            if sent < request.sampling.max_tokens and reason == "length":
                reason = "stop"
            await self._send(peer, Done(request.id, reason, self._report(request, sent)))

    def _explain(self, request: Generate) -> Failed | Explained:
        if self.refuse is not None:
            return Failed(request.id, self.refuse.code, self.refuse.message, self.refuse.field)
        system = SegmentForecast(
            chunk_id=-1,
            tokens=len(request.system),
            tier="memory",
            stored_bytes=64,
            load_bytes=64,
            action="load",
            load_s=0.0,
        )
        segments = [self._segment(chunk, request.cold) for chunk in request.documents]
        documents = [
            SegmentForecast(
                chunk_id=s.chunk_id,
                tokens=s.tokens,
                tier=s.tier,
                stored_bytes=s.stored_bytes,
                load_bytes=s.bytes,
                action="recompute" if s.tier == "cold" else "load",
                load_s=0.001,
                computed=request.cold if s.tier == "cold" else "",
            )
            for s in segments
        ]
        cold = sum(s.rows_recomputed for s in segments) + len(request.question)
        total = system.tokens + sum(s.tokens for s in segments) + len(request.question)
        forecast = Forecast(
            prompt_tokens=total,
            system=system,
            documents=documents,
            recomputed_tokens=cold,
            flops=1e6 * cold,
            full_prefill_flops=1e6 * total,
            first_token_s=1e-4 * cold,
            full_prefill_s=1e-4 * total,
            measured=True,
        )
        return Explained(request.id, forecast)

    async def _pause(self, request_id: str, seconds: float) -> None:
        """Sleep, and while all are held, until an abort at the latest."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while request_id not in self.aborted and (self.held or end > loop.time()):
            await asyncio.sleep(0.01 if self.held else min(end - loop.time(), 0.01))

    def _report(self, request: Generate, sent: int) -> Report:
        documents = [self._segment(chunk, request.cold) for chunk in request.documents]
        cached = sum(d.tokens for d in documents if d.tier == "memory")
        system = SegmentReport(
            chunk_id=-1,
            tokens=len(request.system),
            tier="memory",
            bytes=64,
            stored_bytes=64,
            load_s=0.0,
            rows_recomputed=0,
            problems=[],
            plan="",
            why="",
        )
        total = len(request.system) + sum(d.tokens for d in documents) + len(request.question)
        return Report(
            prompt_tokens=total,
            completion_tokens=sent,
            cached_tokens=cached + system.tokens,
            recomputed_tokens=sum(d.tokens for d in documents if d.tier == "cold"),
            system=system,
            documents=documents,
            rows_per_layer=[total] * 4,
            kept_per_layer=[float(total)] * 4,
            coverage=1.0,
            flops=1e6 * total,
            full_prefill_flops=2e6 * total,
            kept_ratio=1.0,
            recomputed_ratio=0.0,
            stages={"queue": 0.001, "load": 0.002, "prefill": 0.003, "decode": 0.004},
            decode_steps=max(0, sent - 1),
            seed=request.sampling.seed,
        )

    def _segment(self, chunk: ChunkTokens, cold: ColdMode) -> SegmentReport:
        known = stored_key(chunk) in self.stored
        tokens = len(chunk.ids)
        return SegmentReport(
            chunk_id=chunk.chunk_id,
            tokens=tokens,
            tier="memory" if known else "cold",
            bytes=1024 * tokens if known else 0,
            stored_bytes=1024 * tokens,
            load_s=0.001,
            rows_recomputed=0 if known else tokens,
            problems=[],
            plan="load" if known else "recompute",
            why="" if known else "not stored",
            computed="" if known else cold,
        )

    async def _beat(self) -> None:
        while True:
            values = [
                ("kvstitch_decode_steps_total", {}, float(len(self.received))),
                ("kvstitch_tier_entries", {"tier": "memory"}, float(len(self.stored))),
            ]
            for peer in self._peers:
                await self._send(peer, self._stats(values))
            await asyncio.sleep(self.heartbeat_s)

    def _stats(self, values: list[tuple[str, dict[str, str], float]]) -> Stats:
        return Stats(
            values, len(self._running), 0, 1.0, draining=self.draining, clock=time.monotonic()
        )

    async def _send(self, peer: bytes, message: Message) -> None:
        await self._socket.send_multipart([peer, wire.encode(message)])


def _logprobs(request: Generate, token: int) -> TokenLogprobs | None:
    """The token is the likeliest, and those with the next ids come after it."""
    count = request.sampling.logprobs
    if count is None:
        return None
    return TokenLogprobs(-0.5, [(token + rank, -0.5 - rank) for rank in range(count)])


async def _serve(worker: FakeWorker) -> None:
    await worker.start()
    end_of_input = asyncio.create_task(asyncio.to_thread(sys.stdin.buffer.read))
    stopped = asyncio.create_task(worker.stopped.wait())
    await asyncio.wait({end_of_input, stopped}, return_when=asyncio.FIRST_COMPLETED)
    await worker.stop()
    os._exit(0)  # a thread may still wait for the end of the input


def main() -> None:
    """Run as a process, as the supervisor starts it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--refuse", default="", help="exit as a worker whose model is refused")
    parser.add_argument("--token-delay", type=float, default=0.0)
    parser.add_argument("--crash-file", type=Path, help="die at the next token once it exists")
    parser.add_argument("--crash-token", type=int, help="die on a chunk that holds this id")
    args = parser.parse_args()
    if args.refuse:
        print(args.refuse, file=sys.stderr)
        sys.exit(REFUSED)

    def crash(request: Generate, number: int) -> None:
        if args.crash_file and number and args.crash_file.exists():
            args.crash_file.unlink()
            os._exit(9)

    def crash_on(chunk: ChunkTokens) -> None:
        if args.crash_token in chunk.ids:
            os._exit(9)

    settings = WorkerSettings.from_json(sys.stdin.readline())
    worker = FakeWorker(settings.address, token_delay_s=args.token_delay)
    worker.on_token, worker.on_chunk = crash, crash_on
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(worker))


if __name__ == "__main__":
    main()
