"""A container engine, by its command line."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

import httpx

DOCKER = os.environ.get("DOCKER", "docker")


def docker(*arguments: str, **options: Any) -> str:
    """Return what docker prints; fails with what it says."""
    done = subprocess.run(
        [DOCKER, *arguments], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr[-2000:]}"
    return done.stdout.strip()


def wait_until_ready(address: str, timeout_s: float = 300) -> float:
    """Wait until the service behind an address is ready; the seconds that it took."""
    started = time.monotonic()
    while time.monotonic() - started < timeout_s:
        try:
            if httpx.get(f"{address}/health/ready", timeout=5).status_code == 200:
                return time.monotonic() - started
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{address} is not ready after {timeout_s:.0f} s")
