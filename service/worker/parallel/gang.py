"""Starts a gang of ranks from the first one, which gets a decoder and a pool for its engine."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from service.errors import InvalidSetting, ModelRefused
from service.shared.worker_settings import WorkerSettings
from service.worker.forward import selfcheck
from service.worker.kv.pool import KVPool
from service.worker.model.decoder import DecoderModel
from service.worker.model.load import load, set_threads
from service.worker.parallel.commands import Load
from service.worker.parallel.exchange import Exchange
from service.worker.parallel.follower import device_of
from service.worker.parallel.followers import Followers
from service.worker.parallel.lead import GangLead
from service.worker.parallel.sharded_model import refuse_model, sharded, weight_bytes
from service.worker.parallel.shared_pool import SharedPool

log = logging.getLogger("kvstitch.parallel")


def refuse(settings: WorkerSettings) -> None:
    """Raises InvalidSetting for settings that do not go together with more than one rank."""
    if settings.methods_dir:
        raise InvalidSetting(
            "methods_dir: methods of your own would see only the heads of one process; leave it or "
            "--tensor-parallel out"
        )
    if settings.sketches:
        raise InvalidSetting(
            "sketches are for SamKV, which --tensor-parallel does not serve: leave one out"
        )
    if settings.quantize != "off":
        raise InvalidSetting(
            "quantize: weights that are quantised are not split over processes; leave it or "
            "--tensor-parallel out"
        )
    if settings.loras:
        raise InvalidSetting(
            "lora: LoRA adapters are not split over processes; leave them or --tensor-parallel out"
        )


class Gang:
    """Rank 0's side. It is a context manager: the other ranks end with it.

    Args:
        size: number of ranks, at least 2.
        device: cpu, cuda, or auto.
        on_end: as in `Followers`.
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
        self._followers = Followers(size, on_end)
        self._lead = GangLead(self._followers, self._exchange)
        self._ended = ExitStack()

    def __enter__(self) -> Gang:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        folder = Path(tempfile.mkdtemp(prefix="kvstitch-gang-"))
        self._ended.callback(shutil.rmtree, folder, ignore_errors=True)
        self._ended.callback(self._exchange.close)
        self._ended.callback(self._followers.close)
        meeting, size, gpus = folder / "ranks", str(self._exchange.size), self._device == "cuda"
        self._followers.start(str(os.getpid()), self._device, str(meeting), size)
        self._exchange.open(meeting, gpus=gpus)
        if not gpus:  # NCCL meets there again at the first exchange
            shutil.rmtree(folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the other ranks."""
        return self._followers.pids

    def load(
        self, folder: str, *, dtype: str = "auto", threads: int = 0
    ) -> tuple[DecoderModel, tuple[float, float]]:
        """Loads a model in all ranks and checks that together they compute what it computes.

        Args:
            folder: a Hugging Face model folder.
            dtype: as in `service.worker.model.load`.
            threads: CPU threads of all ranks together; 0 for torch's default.

        Returns:
            The decoder, which leads the other ranks, and the differences that
            `service.worker.forward.selfcheck` measured.

        Raises:
            ModelRefused: the model cannot be served, or not by so many ranks.
        """
        size = self._exchange.size
        each = max(1, (threads or torch.get_num_threads()) // size)
        set_threads(each)
        self._followers.send(Load(folder, dtype, self._device, each))
        theirs: list[Tensor] = []

        def adapt(model: Any, device: torch.device) -> DecoderModel:
            refuse_model(model.config, size)
            # Of the whole model, before it is cut.
            theirs.append(selfcheck.transformers_logits(model))
            return sharded(model, self._exchange, device)

        try:
            decoder = load(folder, dtype=dtype, device=device_of(self._device, 0), adapt=adapt)
        finally:
            loaded = self._followers.loaded()
        for other in loaded:
            if other.refused:
                raise ModelRefused(other.refused, field="model")
        megabytes = [n >> 20 for n in (weight_bytes(decoder), *(o.nbytes for o in loaded))]
        log.info("%d ranks hold %s MiB of weights, %d threads each", size, megabytes, each)
        differences = selfcheck.check(decoder, theirs[0], probe=self._probe)
        decoder.lead = self._lead
        return decoder, differences

    def _probe(self, decoder: DecoderModel) -> tuple[Tensor, Tensor]:
        return self._lead.call(selfcheck.probed, decoder=decoder)

    @property
    def make_pool(self) -> Callable[..., KVPool]:
        """Makes the KV pool, as `KVPool` does, in all ranks."""
        return partial(SharedPool, ranks=self._exchange, send=self._followers.send)
