"""The correctness gate's checks of what vLLM decodes: its first token from the KV that was handed
over, beside its first token of the same prompt computed in full by itself."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kvstitch.service.errors import KvstitchError
from kvstitch.service.gateway.fleet.worker_pool import Worker
from kvstitch.service.messages.replies import TokenItem
from kvstitch.service.messages.requests import Compared
from kvstitch_vllm.vllm_api import VllmApi

logger = logging.getLogger(__name__)

TOP = 20  # tokens whose probabilities are compared; vLLM names no more
MOST_WAITING = 16
WORST_NATS = 20.0
Likely = list[tuple[int, float]]


class Comparisons:
    """One at a time, so that vLLM computes at most one such prompt beside others."""

    def __init__(self, api: VllmApi, worker: Worker) -> None:
        self._api, self._worker = api, worker
        self._waiting = asyncio.Queue[tuple[str, dict[str, Any], Likely]](MOST_WAITING)

    def add(self, id: str, body: dict[str, Any], handed: Likely) -> None:
        """Compare later, unless too many wait."""
        full = body | {"cache_salt": secrets.token_urlsafe(32), "max_tokens": 1, "min_tokens": 0}
        full.pop("kv_transfer_params")
        with suppress(asyncio.QueueFull):
            self._waiting.put_nowait((id, full, handed))

    async def run(self) -> None:
        while True:
            id, body, handed = await self._waiting.get()
            try:
                items = [item async for item in self._api.answer(id, body)]
            except KvstitchError as error:
                logger.warning("an answer is not checked: %s", error.message)
                continue
            first = items[0]
            if isinstance(first, TokenItem) and first.logprobs is not None:
                self._worker.compared(Compared(id, *compare(first.logprobs.top, handed)))


def compare(full: Likely, handed: Likely) -> tuple[float, bool]:
    """Return KL(full ‖ handed) in nats, and whether both have the same likeliest token.

    Only the tokens that are named of `full` count; where they are not named of `handed`, they have
    the least probability there that is.
    """
    known = dict(handed)
    least = min(known.values())
    kl = math.fsum(math.exp(p) * (p - known.get(token, least)) for token, p in full)
    return min(max(kl, 0.0), WORST_NATS), full[0][0] == handed[0][0]


def as_asked(item: TokenItem, wanted: int | None) -> TokenItem:
    """Return a token with as many of the likeliest as its answer was asked for."""
    if wanted is None or item.logprobs is None:
        return replace(item, logprobs=None)
    return replace(item, logprobs=item.logprobs._replace(top=item.logprobs.top[:wanted]))
