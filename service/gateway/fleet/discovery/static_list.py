"""Addresses that are written down: tcp://a:5700,tcp://b:5700."""

from __future__ import annotations

from collections.abc import AsyncIterator


class StaticList:
    """Never changes.

    Args:
        setting: addresses, separated by commas.
    """

    def __init__(self, setting: str) -> None:
        self._addresses = list(dict.fromkeys(filter(None, map(str.strip, setting.split(",")))))

    async def watch(self) -> AsyncIterator[list[str]]:
        """Yield the addresses, once."""
        yield list(self._addresses)
