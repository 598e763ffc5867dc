"""What kvstitch asks for: settings, the worker's hand-over, the gateway's way to vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstitch.service.plugins import GatewayPart, hookimpl

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel


@hookimpl
def settings() -> type[BaseModel]:
    from kvstitch_vllm.engine_settings import EngineSettings

    return EngineSettings


@hookimpl
def hand_over(settings: Any) -> Any:
    from kvstitch_vllm.hand_over import SharedMemory

    return SharedMemory(settings) if settings.plugins.get("engine") == "vllm" else None


@hookimpl
def answering_worker(settings: Any, model_folder: Path, worker: Any) -> Any:
    if settings.engine != "vllm":
        return None
    from kvstitch_vllm.vllm_worker import VllmWorker

    return VllmWorker(settings, model_folder, worker)


@hookimpl
def gateway_part(gateway: Any) -> GatewayPart | None:
    return None if gateway.settings.engine != "vllm" else gateway.worker
