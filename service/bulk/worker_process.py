"""The one worker process of an actor: settings, supervision, and what to do when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from service.errors import ModelRefused
from service.gateway.worker_client.client import WorkerClient
from service.gateway.worker_client.supervisor import COMMAND, Supervisor
from service.messages.replies import Ready
from service.settings import Settings
from service.shared.worker_settings import WorkerSettings

READY_S = 600.0  # large models load for minutes


def worker_settings(
    settings: Settings,
    model_folder: Path,
    address: str,
    *,
    tenants_secret: str,
    calibration: Path | None = None,
) -> WorkerSettings:
    """Of a worker that only precomputes, into the tiers that others share.

    It has no memory and no SSD tier: gateways would not know of what is there, and deletions would
    not reach it. A chunk is stored only when the shared tiers have taken it.
    """
    made = settings.worker(
        model_folder, address, tenants_secret=tenants_secret, calibration=calibration
    )
    return replace(
        made,
        kv_dir="",
        memory_tier_bytes=0,
        write_through=True,
        prompts_dir="",
        prefix_cache=False,
        max_running=1,
        draft_tokens=0,
        gate_sample=0.0,
        workers=1,
        number=0,
    )


class WorkerProcess:
    """Between start() and stop() one worker runs, and is started again when it dies.

    Attributes:
        client: Calls it.
        refused: Why it will never start; None otherwise.
    """

    def __init__(
        self,
        settings: Settings,
        model_folder: Path,
        *,
        tenants_secret: str,
        calibration: Path | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.client = WorkerClient()
        self.refused: str | None = None
        self._refusal = asyncio.Event()
        self._supervisor = Supervisor(
            self.client,
            lambda address: worker_settings(
                settings,
                model_folder,
                address,
                tenants_secret=tenants_secret,
                calibration=calibration,
            ),
            on_refused=self._on_refused,
            command=command,
        )

    @property
    def pid(self) -> int | None:
        return self._supervisor.pid

    async def start(self) -> None:
        """Begin; does not wait until the worker is ready."""
        await self._supervisor.start()

    async def ready(self) -> Ready:
        """Wait until it is ready.

        Raises:
            ModelRefused: It will never be.
            TimeoutError: It is not after ten minutes.
        """
        waiting = asyncio.create_task(self.client.wait_ready())
        refusal = asyncio.create_task(self._refusal.wait())
        try:
            await asyncio.wait(
                {waiting, refusal}, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED
            )
            if self.refused is not None:
                raise ModelRefused(self.refused)
            if not waiting.done():
                raise TimeoutError(f"the worker is not ready: {self.client.reason}")
            return waiting.result()
        finally:
            waiting.cancel()
            refusal.cancel()

    async def stop(self) -> None:
        await self._supervisor.stop()
        await self.client.close()

    def _on_refused(self, reason: str) -> None:
        self.refused = reason
        self._refusal.set()
