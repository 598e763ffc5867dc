"""The processes of tensor parallelism, as rank 0 sees them: started, watched, sent calls, ended."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from service.errors import InvalidSetting, ModelRefused
from service.shared import logs
from service.shared.worker_settings import WorkerSettings
from service.worker.forward import selfcheck
from service.worker.kv.pool import KVPool
from service.worker.model.decoder import DecoderModel
from service.worker.model.load import load, set_threads
from service.worker.parallel.calls import Calls, pickled
from service.worker.parallel.exchange import Exchange
from service.worker.parallel.other_rank import OtherRank, device_of
from service.worker.parallel.sharded_model import refuse_model, sharded

log = logging.getLogger("kvstitch.parallel")

ANSWER_S = 5.0  # how long a process may take to say how it failed
ENDS_S = 1.0  # how long a process whose pipe is broken may take to end
PROGRAM = "from service.worker.parallel.other_rank import main; main()"


def refuse(settings: WorkerSettings) -> None:
    """Raise InvalidSetting for settings that do not go together with more than one rank."""
    if settings.methods_dir:
        raise InvalidSetting(
            "methods_dir: methods of your own would see only the heads of one process; leave it or "
            "--tensor-parallel out"
        )
    if settings.sketches:
        raise InvalidSetting(
            "sketches are for SamKV, which --tensor-parallel does not serve: leave one out"
        )


class TensorParallel:
    """Rank 0's side. It is a context manager: the other ranks end with it.

    Args:
        size: number of ranks, at least 2.
        device: cpu, cuda, or auto.
        on_end: called with a sentence when a rank has ended or all are out of step, on any thread.
            It should end this process: what runs here may wait for the others for ever.

    Attributes:
        lora_logits: of the last model that was loaded, what transformers computes without and with
            each LoRA adapter, for `selfcheck.add_lora`.
    """

    def __init__(self, size: int, *, device: str = "auto", on_end: Callable[[str], None]) -> None:
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self._device = "cuda" if device == "auto" and gpus else device.replace("auto", "cpu")
        if self._device.startswith("cuda:"):
            raise InvalidSetting("--tensor-parallel uses the first GPUs: give --device cuda")
        if self._device == "cuda" and gpus < size:
            raise InvalidSetting(
                f"--tensor-parallel {size} needs a GPU for each rank, and torch finds {gpus}: "
                "choose a smaller number, or --device cpu"
            )
        self._exchange = Exchange(0, size)
        self._ranks = range(1, size)  # the others
        self._on_end = on_end
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        self._ending = threading.Event()
        self._opened = ExitStack()
        self._calls = Calls(self._exchange, self._send, self._answers, self._give_up)
        self.lora_logits: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def pids(self) -> list[int]:
        """Process ids of the other ranks."""
        return [process.pid for process in self._processes]

    def make_pool(self, *sizes: int, dtype: torch.dtype, device: torch.device) -> KVPool:
        """Make the KV pool, as `KVPool` does, in all ranks."""
        self._send(OtherRank.make_pool, *sizes)
        pool = KVPool(*sizes, dtype=dtype, device=device, ranks=self._exchange)
        pool.lead = self._calls
        return pool

    def __enter__(self) -> TensorParallel:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with ExitStack() as opened:  # it ends what was begun if the rest fails
            folder = Path(tempfile.mkdtemp(prefix="kvstitch-ranks-"))
            gpus = self._device == "cuda"
            opened.callback(shutil.rmtree, folder, ignore_errors=True)
            opened.callback(self._exchange.close)
            opened.callback(self._end)
            for rank in self._ranks:
                self._start(rank, str(os.getpid()), self._device, str(folder / "ranks"))
            self._exchange.open(folder / "ranks", gpus=gpus)
            if not gpus:  # NCCL meets there again at the first exchange
                shutil.rmtree(folder)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def load(
        self,
        folder: str,
        *,
        dtype: str = "auto",
        threads: int = 0,
        quantize: str = "off",
        loras: Mapping[str, str] | None = None,
    ) -> tuple[DecoderModel, tuple[float, float]]:
        """Load a model in all ranks and check that together they compute what it computes.

        Args:
            folder: a Hugging Face model folder.
            dtype: as in `service.worker.model.load`.
            threads: CPU threads of all ranks together; 0 for torch's default.
            quantize: as in `service.worker.model.load`.
            loras: folders of the LoRA adapters that `selfcheck.add_lora` will add, by name.

        Returns:
            The decoder, whose work all ranks do, and the differences that
            `service.worker.forward.selfcheck` measured.

        Raises:
            ModelRefused: the model cannot be served, or not by so many ranks.
        """
        size = self._exchange.size
        each = max(1, (threads or torch.get_num_threads()) // size)
        set_threads(each)
        self._send(OtherRank.load, folder, dtype, self._device, quantize, each)
        theirs: list[Tensor] = []

        def adapt(model: Any, device: torch.device) -> DecoderModel:
            refuse_model(model.config, size)
            # Of the whole model, before it is cut.
            theirs.append(selfcheck.transformers_logits(model))
            self.lora_logits = {
                name: selfcheck.lora_logits(model, name, Path(lora))
                for name, lora in (loras or {}).items()
            }
            return sharded(model, self._exchange, device)

        try:
            place = device_of(self._device, 0)
            decoder = load(folder, dtype=dtype, device=place, quantize=quantize, adapt=adapt)
        finally:
            loaded = [self._answer(rank) for rank in self._ranks]
        for refused in filter(None, loaded):
            raise ModelRefused(refused, field="model")
        log.info("%d ranks, %d threads each", size, each)
        decoder.lead = self._calls
        return decoder, selfcheck.check(decoder, theirs[0])

    # -- processes --------------------------------------------------------------------------------

    def _start(self, rank: int, *arguments: str) -> None:
        """Start the process of a rank with these arguments between its pipe and its number."""
        size = str(self._exchange.size)
        ours, theirs = socket.socketpair()
        with theirs:
            program = [sys.executable, "-c", PROGRAM, str(theirs.fileno())]
            process = subprocess.Popen(
                [*program, *arguments, size, str(rank), logs.kind()],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._processes.append(process)
        self._pipes.append(Connection(ours.detach()))
        threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def _watch(
        self, rank: int, process: subprocess.Popen[bytes], timeout: float | None = None
    ) -> None:
        code = process.wait(timeout)
        self._give_up(f"rank {rank} of {self._exchange.size} ended (code {code})")

    def _lost(self, rank: int, error: Exception) -> None:
        """Give up because the pipe to a rank is broken: mostly because its process has ended."""
        try:
            self._watch(rank, self._processes[rank - 1], ENDS_S)
        except subprocess.TimeoutExpired:
            self._give_up(f"rank {rank} cannot be reached: {error}")

    def _end(self) -> None:
        """End the processes."""
        self._ending.set()
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()  # it has nothing to save, and may be waiting in an exchange
            process.wait()

    def _give_up(self, why: str) -> None:
        if not self._ending.is_set():
            self._on_end(why)

    def _send(self, function: Callable[..., None], *arguments: Any) -> None:
        """Send every process a call."""
        content = pickled((function, *arguments))
        for rank in self._ranks:
            try:
                self._pipes[rank - 1].send_bytes(content)
            except OSError as error:
                self._lost(rank, error)

    def _answers(self) -> list[Any]:
        """Wait for every answer; there are none where ranks are out of step."""
        answers = []
        for rank in self._ranks:
            if not self._pipes[rank - 1].poll(ANSWER_S):
                self._give_up(f"rank {rank} does not answer")
                return []
            answers.append(self._answer(rank))
        return answers

    def _answer(self, rank: int) -> Any:
        try:
            return self._pipes[rank - 1].recv()
        except (EOFError, OSError) as error:
            self._lost(rank, error)
            raise
