"""A tier of the KV store outside the tree."""

from __future__ import annotations

from kvstitch.kvstore import MemoryTier
from kvstitch.kvstore.tiers.base import TierKind
from kvstitch.service.shared.worker_settings import MIB, WorkerSettings


class Shelf(MemoryTier):
    """A bounded place that is slower than memory."""

    kind: TierKind = "disk"


def make(settings: WorkerSettings, pin: bool) -> Shelf:
    return Shelf(settings.plugins["shelf_mib"] * MIB, name="shelf")
