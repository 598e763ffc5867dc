"""`python -m service.worker.parallel.follower`: a rank that does what rank 0 tells it.

It ends when rank 0 does, when the pipe from it closes, and when it is out of step.
"""

from __future__ import annotations

import ctypes
import logging
import os
import pickle
import signal
import sys
from collections.abc import Generator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from service.errors import KvstitchError
from service.worker.forward.chunk_prefill import ScratchKV
from service.worker.forward.prefill import Progress
from service.worker.kv.pool import KVPool, SequenceKV
from service.worker.methods.layer_view import PrefillResult
from service.worker.model.decoder import DecoderModel
from service.worker.model.load import load, set_threads
from service.worker.parallel import commands as c
from service.worker.parallel.exchange import Exchange
from service.worker.parallel.segments import ReceivedSegment
from service.worker.parallel.sharded_model import sharded, weight_bytes
from service.worker.steps import Steps

log = logging.getLogger("kvstitch.parallel")

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
CHECK_S = 5.0  # how long after a failure rank 0 may take to say that it failed there, too


class SegmentGone(Exception):
    """What this work reads will not arrive."""


class Follower:
    """One rank's model, pools and work under way."""

    def __init__(self, pipe: Connection, exchange: Exchange) -> None:
        self._pipe = pipe
        self._exchange = exchange
        self._decoder: DecoderModel | None = None
        self._pools: dict[int, KVPool] = {}
        self._kv: dict[int, SequenceKV] = {}
        self._progress: dict[int, Progress] = {}
        self._observed: dict[int, list[torch.Tensor]] = {}
        self._runs: dict[int, tuple[Generator[Any, None, Any], int | None]] = {}
        self._failed = False

    def run(self) -> None:
        """Follows until rank 0 closes the pipe."""
        while True:
            if self._failed and not self._pipe.poll(CHECK_S):
                raise RuntimeError("rank 0 goes on after a failure here")
            try:
                command = pickle.loads(self._pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                return
            if self._failed and not isinstance(command, c.Check):
                raise RuntimeError("rank 0 goes on after a failure here")
            try:
                if isinstance(command, c.Load):
                    self._load(command)
                else:
                    self._do(command)
            except SegmentGone:
                self._failed = True
            except Exception:
                log.exception("rank %d failed at %s", self._exchange.rank, type(command).__name__)
                self._failed = True

    @torch.inference_mode()
    def _do(self, command: object) -> None:
        match command:
            case c.Next(run):
                self._next(run)
            case c.Call(work, arguments):
                work(**self._own(arguments))
            case c.OnKV(number, method, arguments):
                getattr(self._kv[number], method)(*map(self._cache, arguments))
                if method == "release":
                    for held in (self._kv, self._progress, self._observed):
                        held.pop(number, None)
            case c.Begin(run, work, arguments):
                cache = arguments.get("kv")
                prompt = cache.kv if isinstance(cache, c.Cache) else None
                self._runs[run] = work(**self._own(arguments)), prompt
            case c.Close(run):
                steps, _ = self._runs.pop(run)
                steps.close()
            case c.Reserve(pool, number, tokens):
                reserved = self._pools[pool].reserve(tokens)
                assert reserved is not None, "what fits on rank 0 fits here"
                self._kv[number] = reserved
            case c.MakePool(pool, tokens):
                self._pools = {pool: self._pool(tokens)}
            case c.Check():
                self._answer(c.Checked(self._failed, self._exchange.made))
                self._failed = False

    def _next(self, run: int) -> None:
        steps, kv = self._runs[run]
        try:
            next(steps)
        except StopIteration as end:
            if kv is not None and isinstance(end.value, PrefillResult):
                self._observed[kv] = end.value.observed
                self._progress.pop(kv, None)

    def _answer(self, answer: object) -> None:
        self._pipe.send_bytes(pickle.dumps(answer))

    # -- what it has for itself -------------------------------------------------------------------

    @property
    def _model(self) -> DecoderModel:
        assert self._decoder is not None, "a model is loaded first"
        return self._decoder

    def _load(self, command: c.Load) -> None:
        set_threads(command.threads)
        self._pools, self._decoder = {}, None
        try:
            self._decoder = load(
                command.folder,
                dtype=command.dtype,
                device=device_of(command.device, self._exchange.rank),
                adapt=lambda model, device: sharded(model, self._exchange, device),
            )
        except KvstitchError as error:
            self._answer(c.Loaded(error.message, 0))
            return
        self._answer(c.Loaded("", weight_bytes(self._decoder)))

    def _pool(self, tokens: int) -> KVPool:
        decoder = self._model
        return KVPool(
            decoder.layers,
            decoder.own_kv_heads,
            decoder.head_dim,
            tokens,
            dtype=decoder.dtype,
            device=decoder.device,
            ranks=self._exchange,
        )

    def _own(self, told: dict[str, Any]) -> dict[str, Any]:
        """The arguments of work as this rank has them."""
        own: dict[str, Any] = {"decoder": self._model}
        for name, value in told.items():
            match name, value:
                case (("cached" | "parts"), _):
                    own[name] = [
                        stored and ReceivedSegment(stored.tokens, self._exchange, self._model)
                        for stored in value
                    ]
                case "layout", _:
                    own[name] = value.to(self._model.device)
                case "arrival", _:
                    own[name] = self._arrival if value else None
                case "sequences", _:
                    own[name] = [
                        c.Fed(fed.tokens, fed.position, self._cache(fed.kv)) for fed in value
                    ]
                case _, c.Scratch(tokens):
                    own[name] = ScratchKV(self._model, tokens)
                case _, c.Resumed(kv, anew):
                    if anew:
                        self._progress[kv] = Progress()
                    own[name] = self._progress[kv]
                case _, c.Observed(kv):
                    own[name] = self._observed[kv]
                case _:
                    own[name] = self._cache(value)
        return own

    def _cache(self, argument: Any) -> Any:
        return self._kv[argument.kv] if isinstance(argument, c.Cache) else argument

    def _arrival(self, layer: int) -> Steps[None]:
        """Rank 0's waiting for a layer: as many steps, and the same end."""
        while True:
            match pickle.loads(self._pipe.recv_bytes()):
                case c.Waits():
                    yield None
                case c.Arrived():
                    return
                case c.Lost():
                    raise SegmentGone
                case other:
                    raise RuntimeError(f"out of step: {other}")


def device_of(device: str, rank: int) -> str:
    """The device of a rank: the CPU, or a GPU of its own."""
    return f"cuda:{rank}" if device == "cuda" else device


def main() -> int:
    pipe, parent, device, meeting, size, rank = sys.argv[1:]
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != int(parent):  # it ended before it could be told to end this one
        return 1
    for stopping in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stopping, signal.SIG_IGN)  # rank 0 finishes what runs, and ends this one
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s %(name)s rank {rank}: %(message)s",
    )
    exchange = Exchange(int(rank), int(size))
    exchange.open(Path(meeting), gpus=device == "cuda")
    Follower(Connection(int(pipe)), exchange).run()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # without the exchange's own end, which waits for rank 0's
