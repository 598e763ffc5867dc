"""Polls jobs until they end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import httpx

from service.cli.service_client import checked

POLL_S = 0.25
MAX_ERRORS = 10_000  # documents of one call
AWAY_S = 120.0  # how long to wait for a service that is being restarted; it resumes its jobs


def ended(job: dict[str, Any]) -> bool:
    return job["state"] not in ("queued", "running")


def poll(http: httpx.Client, job_ids: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields these jobs as they are now, after a pause.

    Raises:
        CommandError: The service refuses.
        httpx.TransportError: The service stays away.
    """
    time.sleep(POLL_S)
    for job_id in job_ids:
        give_up_at = time.monotonic() + AWAY_S
        while True:
            try:
                response = http.get(f"/admin/jobs/{job_id}")
            except httpx.TransportError:
                if time.monotonic() > give_up_at:
                    raise
            else:
                if response.status_code != 503:
                    yield checked(response)
                    break
                if time.monotonic() > give_up_at:
                    checked(response)
            time.sleep(1.0)


def all_errors(http: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    """A job with the errors of all its documents, once it has ended."""
    if not ended(job) or job["progress"]["failed"] <= len(job["errors"]):
        return job
    path = f"/admin/jobs/{job['job_id']}"
    found: dict[str, Any] = checked(http.get(path, params={"errors": MAX_ERRORS}))
    return found
