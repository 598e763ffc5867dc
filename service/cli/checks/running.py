"""Checks a running service: ready, of this release, its tiers reachable, no failed jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx

from service import __version__
from service.cli.checks.finding import Finding, fail, ok, warn
from service.cli.service_client import CommandError, checked

CHECK = "service"


def check(http: httpx.Client, url: str) -> Iterator[Finding]:
    """Check the service at `url`; it is not an error if none runs there."""
    try:
        live = http.get("/health/live", timeout=5.0)
    except httpx.HTTPError:
        yield ok(CHECK, f"none answers at {url}; `kvstitch serve` starts one")
        return
    if not _alive(live):
        yield warn(CHECK, f"what answers at {url} is not kvstitch", "give another --url or --port")
        return
    try:
        status = checked(http.get("/status", timeout=30.0))
    except (CommandError, httpx.HTTPError) as error:
        text = error.message if isinstance(error, CommandError) else str(error)
        yield warn(CHECK, f"{url} runs, but does not tell its status: {text}",
                   "give --api-key of a key with the scope metrics")  # fmt: skip
        return
    yield _state(url, status)
    yield from _parts(status)


def _alive(live: httpx.Response) -> bool:
    try:
        return bool(live.json()["status"] == "ok")
    except (ValueError, KeyError, TypeError):
        return False


def _state(url: str, status: dict[str, Any]) -> Finding:
    if status["state"] != "ready":
        return fail(CHECK, f"{url} is not ready: {status['reason']}",
                    "wait if it is loading; else its log says why")  # fmt: skip
    if status["version"] != __version__:
        return warn(CHECK, f"{url} is version {status['version']}, this is {__version__}",
                    "restart it, or use its own command line")  # fmt: skip
    model = status["model"]
    return ok(CHECK, f"{url} is ready: {model['id']}, {model['dtype']} on {model['device']}")


def _parts(status: dict[str, Any]) -> Iterator[Finding]:
    for name, tier in sorted(status["tiers"].items()):
        if not tier.get("healthy", 1):
            yield fail(CHECK, f"its tier {name} does not answer",
                       "bring it back; the service tries again by itself")  # fmt: skip
    jobs = (status["corpus"] or {}).get("jobs", {})
    if bad := {state: jobs[state] for state in ("failed", "dead") if jobs.get(state)}:
        what = ", ".join(f"{n} {state}" for state, n in bad.items())
        yield warn(CHECK, f"jobs: {what}", "kvstitch jobs list --state failed (or dead)")
    free = status["worker"]["pool_free"]
    if free is not None and free < 0.05:
        yield warn(CHECK, "its KV pool is nearly full: requests wait",
                   "lower --max-running, or raise KVSTITCH_POOL_TOKENS")  # fmt: skip
