"""Asks one server one prompt, and times what arrives."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from benchmarks.peers.dialects import Dialect
from benchmarks.peers.prompts import Prompt
from loadtest.measurement.event_stream import EventParser
from loadtest.measurement.streamed_answer import StreamedAnswer

LIMIT_S = 120.0
"""Without a byte from the server."""
OK, FAILED = "ok", "failed"


@dataclass(frozen=True)
class Sample:
    """What became of one prompt at one server.

    Attributes:
        prompt: its key.
        contestant: the server, and for kvstitch the method.
        place: 0: it was the first that was asked this prompt.
        outcome: `ok` or `failed`.
        error: what went wrong.
        ttft_s: seconds from sending the request to the first text.
        e2e_s: seconds to the end.
        tpot_s: seconds per token after the first.
        prompt_tokens: of the prompt, counted by the server.
        completion_tokens: of the answer, counted by the server.
        cached_tokens: prompt tokens that the server says it had.
        text: the answer.
        work_s: processor seconds of the server until it was at rest again.
    """

    prompt: str
    contestant: str
    place: int
    outcome: str = FAILED
    error: str | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    tpot_s: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    text: str = ""
    work_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Without what is not known; times to the microsecond."""
        return {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in asdict(self).items()
            if value is not None
        }


def ask(
    url: str,
    dialect: Dialect,
    prompt: Prompt,
    max_tokens: int,
    *,
    contestant: str = "",
    place: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Sample:
    """Sends a prompt and reads the whole answer. Faults of the server do not raise.

    The request is encoded before the clock starts. An answer to another prompt than ours, by the
    number of its tokens, has failed.

    Args:
        url: base URL of the server.
        dialect: how it is asked.
        prompt: the prompt.
        max_tokens: longest answer.
        contestant: goes into the sample.
        place: goes into the sample.
        clock: gives seconds.
    """
    answer = StreamedAnswer()
    with httpx.Client(base_url=url, timeout=LIMIT_S) as http:
        request = http.build_request("POST", dialect.path, json=dialect.body(prompt, max_tokens))
        began = clock()
        try:
            error = _read(http, request, dialect, answer, clock)
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as caught:
            error = f"{type(caught).__name__}: {caught}"
    if error is None and answer.prompt_tokens != len(prompt.ids):
        error = f"the server counted {answer.prompt_tokens} prompt tokens, not {len(prompt.ids)}"
    if error is not None or answer.first_at is None or answer.ended_at is None:
        return Sample(prompt.key, contestant, place, error=error or "the stream broke off")
    return Sample(
        prompt.key,
        contestant,
        place,
        OK,
        ttft_s=answer.first_at - began,
        e2e_s=answer.ended_at - began,
        tpot_s=answer.tpot_s,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        cached_tokens=answer.cached_tokens,
        text=answer.text.strip(),
    )


def _read(
    http: httpx.Client,
    request: httpx.Request,
    dialect: Dialect,
    answer: StreamedAnswer,
    clock: Callable[[], float],
) -> str | None:
    """Fills the answer; returns what went wrong."""
    reply = http.send(request, stream=True)
    try:
        if reply.status_code != 200:
            reply.read()
            return f"HTTP {reply.status_code}: {reply.text[:300]}"
        parser = EventParser()
        for received in reply.iter_raw():
            now = clock()
            for event in parser.feed(received):
                dialect.read(event, answer, now)
    finally:
        reply.close()
    return answer.error
