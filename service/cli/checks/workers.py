"""Checks that workers which run by themselves can be reached: that something takes connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

from service.cli.checks.finding import Finding, fail, ok, warn
from service.gateway.fleet.discovery import DnsName
from service.settings import Settings

PATIENCE_S = 2.0


def check(settings: Settings) -> Iterator[Finding]:
    """One finding per worker that is listed; nothing where the gateway starts its own.

    Whether the secret is the same shows in `reason` of `/status`.
    """
    listed = settings.worker_addresses
    if not listed or listed.startswith("ray://"):
        return
    addresses = listed.split(",")
    if listed.startswith("dns://"):
        found = asyncio.run(DnsName(listed).look_up())
        addresses = found or []
        if not addresses:
            yield fail("workers", f"{listed} has no addresses", "start workers, or mend the name")
    for address in addresses:
        if address.startswith("tcp://"):
            yield _reached(address)


def _reached(address: str) -> Finding:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S).close()
    except OSError as error:
        return warn("workers", f"{address} does not take connections: {error}",
                    "start it: kvstitch worker; it listens when its model is loaded")  # fmt: skip
    return ok("workers", f"{address} takes connections")
