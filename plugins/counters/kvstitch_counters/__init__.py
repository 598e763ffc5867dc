"""Quotas per minute that hold over all gateways: Redis counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvstitch.service.plugins import hookimpl

if TYPE_CHECKING:
    from pydantic import BaseModel


@hookimpl
def settings() -> type[BaseModel]:
    from kvstitch_counters.counters_settings import CountersSettings

    return CountersSettings


@hookimpl
def rate_counters(settings: Any, secret: Callable[[], str], metrics: Any) -> Any:
    if not settings.counters_url:
        return None
    from kvstitch_counters.redis_counters import RedisCounters

    return RedisCounters(settings.counters_url, secret, metrics)
