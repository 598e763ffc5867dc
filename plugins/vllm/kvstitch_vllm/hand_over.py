"""The worker's side: segments in a folder of its own in shared memory, and no other's left there.

    /dev/shm/kvstitch-<random>/       mode 0700, locked while its worker lives
        <random>                      mode 0600, one for each prompt that is handed over

The worker unlinks a segment when the gateway says that vLLM has loaded it, or that nobody wants it;
at its end the folder goes. What a worker that was killed has left, the next one removes.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.shared.worker_settings import WorkerSettings
from kvstitch_vllm.segment import write
from kvstitch_vllm.weights import weights_of

log = logging.getLogger("kvstitch.worker")


@dataclass(frozen=True)
class Segment:
    """One file, until it is closed."""

    path: Path

    @property
    def place(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    def close(self) -> None:
        self.path.unlink(missing_ok=True)


class SharedMemory:
    """Hands KV over to a vLLM on this machine. Enter it before use.

    Raises:
        InvalidSetting: Its weights would not be vLLM's.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        if settings.quantize != "off" or settings.loras:
            raise InvalidSetting(
                "engine vllm needs the same weights on both sides: leave quantize and lora out"
            )
        try:
            self._weights = weights_of(settings.model)
        except ValueError as error:
            raise InvalidSetting(f"engine vllm: {error}") from error
        folder = Path(settings.plugins["hand_over_dir"])
        self._own = folder / f"kvstitch-{secrets.token_hex(16)}"
        self._lock: int | None = None

    def __enter__(self) -> SharedMemory:
        _sweep(self._own.parent)
        while not self._own.exists():  # another may sweep it away before it is locked
            self._own.mkdir(mode=0o700)
            self._lock = os.open(self._own, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(self, *raised: object) -> None:
        shutil.rmtree(self._own, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    def put(self, layers: Sequence[tuple[Tensor, Tensor]], ids: Sequence[int]) -> Segment:
        segment = Segment(self._own / secrets.token_hex(16))
        try:
            write(segment.path, layers, weights=self._weights, ids=ids)
        except BaseException:
            segment.close()
            raise
        return segment


def _sweep(folder: Path) -> None:
    """Remove what workers have left that were killed."""
    for left in folder.glob("kvstitch-" + "[0-9a-f]" * 32):
        try:
            lock = os.open(left, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # it has just gone, or is another user's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
            log.warning("KV that a worker had left in %s was removed", left)
        except BlockingIOError:
            pass  # its worker lives
        finally:
            os.close(lock)
