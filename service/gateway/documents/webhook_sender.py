"""Delivers events to the webhook, each at least once, until it answers 2xx or patience ends.

due events ── POST, signed ── 2xx: delivered
                   └── else: again after 5 s, 10 s, 20 s … 1 h, for a day; then given up
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import random
import time

import httpx

from service.gateway.documents.background_loop import BackgroundLoop
from service.gateway.documents.jobs.webhook_events import Event, EventStore
from service.gateway.prometheus import GatewayMetrics

logger = logging.getLogger(__name__)

POLL_S = 1.0
BATCH_EVENTS = 20
TIMEOUT_S = 10.0
FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 3600.0
GIVE_UP_S = 24 * 3600.0  # after the job's end


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the header Kvstitch-Signature: HMAC-SHA256 over timestamp.body."""
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


class WebhookSender:
    """Works off what is owed while it is started.

    Args:
        events: What is owed.
        url: Where to. The operator sets it, so private addresses are allowed.
        secret: Signs every request.
        metrics: Counts what became of the attempts.
        first_retry_s: Pause after the first attempt that failed; it doubles with each.
        give_up_s: Seconds after which an event is not tried again.
    """

    def __init__(
        self,
        events: EventStore,
        url: str,
        secret: str,
        metrics: GatewayMetrics,
        *,
        first_retry_s: float = FIRST_RETRY_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._events = events
        self._url = url
        self._secret = secret
        self._metrics = metrics
        self._first_retry_s = first_retry_s
        self._give_up_s = give_up_s
        self._loop = BackgroundLoop("webhook", self._step, min(POLL_S, first_retry_s))

    def start(self) -> None:
        self._loop.start()

    async def close(self) -> None:
        """Cancel the attempt under way; it is made again after the next start."""
        await self._loop.close()

    async def _step(self) -> bool:
        due = await asyncio.to_thread(self._events.due, time.time(), BATCH_EVENTS)
        if not due:
            return False
        # No proxy and no credentials of the environment: the URL is all there is to it.
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as http:
            for event in due:
                await self._deliver(http, event)
        return True

    async def _deliver(self, http: httpx.AsyncClient, event: Event) -> None:
        fault = await self._attempt(http, event)
        if fault is None:
            await asyncio.to_thread(self._events.settle, event)
            self._metrics.webhooks.labels("delivered").inc()
        elif time.time() - event.created >= self._give_up_s:
            await asyncio.to_thread(self._events.settle, event)
            self._metrics.webhooks.labels("failed").inc()
            logger.error(
                "webhook event %s is given up after %d attempts: %s",
                event.event_id, event.attempts + 1, fault,
            )  # fmt: skip
        else:
            pause = min(self._first_retry_s * 2 ** min(event.attempts, 30), LONGEST_RETRY_S)
            # Replicas that were refused together do not come back together.
            due = time.time() + pause * random.uniform(0.8, 1.2)
            await asyncio.to_thread(self._events.postpone, event, due)
            self._metrics.webhooks.labels("retried").inc()
            logger.warning("webhook event %s is tried again: %s", event.event_id, fault)

    async def _attempt(self, http: httpx.AsyncClient, event: Event) -> str | None:
        """Return why it was not delivered; None if it was. Redirects are not followed."""
        timestamp = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "kvstitch-webhook",
            "Kvstitch-Event-Id": event.event_id,
            "Kvstitch-Timestamp": timestamp,
            "Kvstitch-Signature": signature(self._secret, timestamp, event.body),
        }
        try:
            # Only the status counts: a body of any length is not read.
            async with http.stream(
                "POST", self._url, content=event.body, headers=headers
            ) as response:
                return None if response.is_success else f"HTTP {response.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{type(error).__name__}: {error}"
