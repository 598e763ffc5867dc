"""The source of workers' addresses that KVSTITCH_WORKER_ADDRESSES names."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from typing import Protocol, cast

from service.gateway.fleet.discovery.dns_name import DnsName
from service.gateway.fleet.discovery.static_list import StaticList

RAY_ACTORS = "service.gateway.fleet.discovery.ray_actors"


class Source(Protocol):
    """Knows where workers are."""

    def watch(self) -> AsyncIterator[list[str]]:
        """Yield all addresses, now and whenever they have changed."""
        ...


def source_of(setting: str) -> Source:
    """The source for a value of the setting, which `service.settings` has checked."""
    if setting.startswith("dns://"):
        return DnsName(setting)
    if setting.startswith("ray://"):
        # Only here, so that nothing of Ray is needed elsewhere.
        return cast(Source, importlib.import_module(RAY_ACTORS).RayActors(setting))
    return StaticList(setting)
