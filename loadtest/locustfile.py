"""Locust users of POST /v1/rag/generate that read the stream. Speaks HTTP, knows nothing of ours.

    KVSTITCH_QUESTIONS=questions.jsonl locust -f loadtest/locustfile.py --host http://127.0.0.1:8000

Beside the request itself (until its last byte) two times are reported as events of their own:
TTFT, from sending to the first token, and TPOT, the mean time per token after the first.

KVSTITCH_QUESTIONS   JSONL file, one object with a `question` a line (required)
KVSTITCH_REQUEST     JSON object, merged into every request body, e.g.
                     {"fusion": {"method": "pie"}, "top_k": 5, "max_tokens": 64}
KVSTITCH_WAIT_S      mean pause of a user between two questions, in seconds (default 0)
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from locust import HttpUser, events, task

PATH = "/v1/rag/generate"
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Setup:
    """What the environment variables say."""

    questions: list[str]
    request: dict[str, Any]
    wait_s: float


@cache
def setup() -> Setup:
    file = os.environ.get("KVSTITCH_QUESTIONS")
    if not file:
        raise SystemExit("set KVSTITCH_QUESTIONS to a JSONL file of objects with a `question`")
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return Setup(
        questions=[json.loads(line)["question"] for line in lines if line.strip()],
        request=json.loads(os.environ.get("KVSTITCH_REQUEST", "{}")),
        wait_s=float(os.environ.get("KVSTITCH_WAIT_S", "0")),
    )


@events.init.add_listener
def fail_early(**_: Any) -> None:
    """A wrong variable ends locust at its start, not every request."""
    setup()


class Asker(HttpUser):
    """Asks a random question, reads the answer to its end, pauses."""

    def wait_time(self) -> float:
        return random.expovariate(1 / setup().wait_s) if setup().wait_s else 0.0

    @task
    def ask(self) -> None:
        body = {**setup().request, "question": random.choice(setup().questions), "stream": True}
        started = time.perf_counter()
        first: float | None = None
        with self.client.post(
            PATH, json=body, stream=True, catch_response=True, timeout=TIMEOUT_S
        ) as reply:
            if reply.status_code != 200:
                reply.failure(f"HTTP {reply.status_code}: {reply.text[:200]}")
                return
            for event, data in server_sent_events(reply.iter_lines(decode_unicode=True)):
                now = time.perf_counter()
                if event == "token" and first is None:
                    first = now
                    self._report("TTFT", first - started)
                elif event == "error":
                    reply.failure(data["error"]["message"])
                    return
                elif event == "done":
                    tokens = data["usage"]["completion_tokens"]
                    if first is not None and tokens > 1:
                        self._report("TPOT", (now - first) / (tokens - 1))
                    # Locust's own time ends with the headers; this is the whole answer.
                    reply.request_meta["response_time"] = 1000 * (now - started)
                    reply.request_meta["response_length"] = len(data["text"])
                    reply.success()
                    return
            reply.failure("the stream ended without `done`")

    def _report(self, kind: str, seconds: float) -> None:
        self.environment.events.request.fire(
            request_type=kind,
            name=PATH,
            response_time=1000 * seconds,
            response_length=0,
            exception=None,
            context={},
        )


def server_sent_events(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """(event, data) pairs; comments are skipped."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
