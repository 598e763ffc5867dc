"""A rank other than 0: a process that runs what rank 0 sends, on its own heads.

It ends when rank 0 does, when the pipe from it closes, and when it is out of step.
"""

from __future__ import annotations

import ctypes
import io
import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from service.errors import KvstitchError
from service.shared import logs
from service.worker.forward.chunk_prefill import ScratchKV
from service.worker.forward.prefill import Progress
from service.worker.kv.pool import KVPool, SequenceKV
from service.worker.methods.layer_view import PrefillResult
from service.worker.model.decoder import DecoderModel
from service.worker.model.load import load, set_threads
from service.worker.parallel.exchange import Exchange
from service.worker.parallel.sharded_model import sharded
from service.worker.parallel.stored_segments import SegmentGone, SharedArrival, SharedSegment

log = logging.getLogger("kvstitch.parallel")

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
CHECK_S = 5.0  # how long after a failure rank 0 may take to say that it failed there, too


class OtherRank:
    """One rank's model, pool and work under way. Rank 0 sends functions of this class."""

    def __init__(self, pipe: Connection, exchange: Exchange) -> None:
        self._pipe = pipe
        self._exchange = exchange
        self._decoder: DecoderModel | None = None
        self._pool: KVPool | None = None
        self._kv: dict[int, SequenceKV] = {}
        self._progress: WeakKeyDictionary[SequenceKV, Progress] = WeakKeyDictionary()
        self._observed: WeakKeyDictionary[SequenceKV, list[Tensor]] = WeakKeyDictionary()
        self._runs: dict[int, tuple[Generator[Any, None, Any], Any]] = {}
        self._failed = False

    def run(self) -> None:
        """Run what is sent until rank 0 closes the pipe."""
        while True:
            if self._failed and not self._pipe.poll(CHECK_S):
                raise RuntimeError("rank 0 goes on after a failure here")
            try:
                function, *arguments = _Unpickler(self._pipe.recv_bytes(), self.own).load()
            except (EOFError, ConnectionResetError):
                return
            if self._failed and function is not OtherRank.check:
                raise RuntimeError("rank 0 goes on after a failure here")
            try:
                with torch.inference_mode(function is not OtherRank.load):
                    function(self, *arguments)
            except SegmentGone:
                self._failed = True
            except Exception:
                log.exception("rank %d failed at %s", self._exchange.rank, function.__name__)
                self._failed = True

    # -- what rank 0 sends ------------------------------------------------------------------------

    def load(self, folder: str, dtype: str, device: str, quantize: str, threads: int) -> None:
        """Load this rank's part of a model; answers why it is refused, or ""."""
        set_threads(threads)
        self._pool = self._decoder = None
        try:
            self._decoder = load(
                folder,
                dtype=dtype,
                device=device_of(device, self._exchange.rank),
                quantize=quantize,
                adapt=lambda model, place: sharded(model, self._exchange, place),
            )
        except KvstitchError as error:
            self._pipe.send(error.message)
        else:
            self._pipe.send("")

    def make_pool(self, layers: int, kv_heads: int, head_dim: int, tokens: int) -> None:
        decoder = self._model
        self._pool = KVPool(
            layers,
            kv_heads,
            head_dim,
            tokens,
            dtype=decoder.dtype,
            device=decoder.device,
            ranks=self._exchange,
        )

    def repeat(self, change: Callable[..., Any], arguments: tuple[Any, ...], number: int) -> None:
        """Make a change of the pool or of a sequence's KV; what it reserves has this number."""
        made = change(*arguments)
        if isinstance(made, SequenceKV):
            self._kv[number] = made
            made.number = number
        elif change is SequenceKV.give_back:
            del self._kv[arguments[0].number]

    def call(self, work: Callable[..., Any], arguments: dict[str, Any]) -> None:
        """Run work that is done in one go."""
        work(**self._placed(arguments))

    def begin(self, run: int, work: Callable[..., Any], arguments: dict[str, Any]) -> None:
        """Begin work in steps, which `advance` takes."""
        self._runs[run] = work(**self._placed(arguments)), arguments.get("kv")

    def advance(self, run: int) -> None:
        steps, kv = self._runs[run]
        try:
            next(steps)
        except StopIteration as end:
            if isinstance(kv, SequenceKV) and isinstance(end.value, PrefillResult):
                self._observed[kv] = end.value.observed
                self._progress.pop(kv, None)

    def close(self, run: int) -> None:
        steps, _ = self._runs.pop(run)
        steps.close()

    def check(self) -> None:
        """Answer whether the last piece of work failed here, and how many exchanges were made."""
        self._pipe.send((self._failed, self._exchange.made))
        self._failed = False

    # -- what it has for itself -------------------------------------------------------------------

    def own(self, name: tuple[Any, ...]) -> Any:
        """Return what this rank has for itself under a name that rank 0 sent."""
        match name:
            case "decoder", lora:
                return self._model.with_lora(lora)
            case ("pool",):
                return self._pool
            case "kv", number:
                return self._kv[number]
            case "progress", number, anew:
                if anew:
                    self._progress[self._kv[number]] = Progress()
                return self._progress[self._kv[number]]
            case "observed", number:
                return self._observed[self._kv[number]]
            case "segment", tokens:
                return SharedSegment(self._exchange, self._model, tokens)
            case "scratch", tokens:
                return ScratchKV(self._model, tokens)
            case ("arrival",):
                return SharedArrival(self._exchange)
        raise RuntimeError(f"out of step: {name}")

    @property
    def _model(self) -> DecoderModel:
        assert self._decoder is not None, "a model is loaded first"
        return self._decoder

    def _placed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments, with a layout on this rank's device."""
        if "layout" in arguments:
            arguments["layout"] = arguments["layout"].to(self._model.device)
        return arguments


class _Unpickler(pickle.Unpickler):
    def __init__(self, message: bytes, own: Callable[[tuple[Any, ...]], Any]) -> None:
        super().__init__(io.BytesIO(message))
        self.persistent_load = own  # type: ignore[method-assign]


def device_of(device: str, rank: int) -> str:
    """Return the device of a rank: the CPU, or a GPU of its own."""
    return f"cuda:{rank}" if device == "cuda" else device


def main() -> None:
    """Run a rank; the arguments are those that `TensorParallel` gives it."""
    pipe, parent, device, meeting, size, rank, log_format = sys.argv[1:]
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != int(parent):  # it ended before it could be told to end this one
        sys.exit(1)
    for stopping in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stopping, signal.SIG_IGN)  # rank 0 finishes what runs, and ends this one
    logs.set_up(log_format, text=f"%(asctime)s %(levelname)s %(name)s rank {rank}: %(message)s")
    exchange = Exchange(int(rank), int(size))
    exchange.open(Path(meeting), gpus=device == "cuda")
    OtherRank(Connection(int(pipe)), exchange).run()
    sys.stderr.flush()
    os._exit(0)  # without the exchange's own end, which waits for rank 0's
