"""Locust users that ask POST /v1/rag/generate or /v1/chat/completions and read the stream.

    KVSTITCH_QUESTIONS=questions.jsonl locust -f loadtest/locustfile.py --host http://127.0.0.1:8000
    ... locust -f loadtest/locustfile.py RagUser          one kind of user alone

Besides the request itself (until its last byte), two times are reported as separate events: TTFT,
from sending to the first token, and TPOT, the mean time per token after the first. Locust is a
closed loop: a user asks the next question after the last answer. To measure a service at a given
rate, use `python -m loadtest`.

KVSTITCH_QUESTIONS   JSONL file, one object with a `question` a line (required)
KVSTITCH_REQUEST     JSON object for every request, in the terms of /v1/rag/generate, e.g.
                     {"fusion": {"method": "pie"}, "top_k": 5, "max_tokens": 64}
KVSTITCH_WAIT_S      mean pause of a user between two questions, in seconds (default 0)
KVSTITCH_API_KEY     sent as a bearer token
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from locust import HttpUser, events, task

# Locust puts the folder of this file on the path, but not the folder above it.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from loadtest.measurement.event_stream import EventParser
from loadtest.measurement.streamed_answer import StreamedAnswer
from loadtest.traffic.routes import ChatRoute, LoadRequest, MethodUnderTest, RagRoute, Route

TIMEOUT_S = 300.0
DEFAULT = MethodUnderTest("default")


@dataclass(frozen=True)
class LocustSettings:
    """The settings from the environment variables."""

    questions: list[str]
    max_tokens: int | None
    fields: dict[str, Any]
    wait_s: float
    headers: dict[str, str]


@cache
def settings() -> LocustSettings:
    """Read the environment variables and the questions."""
    file = os.environ.get("KVSTITCH_QUESTIONS")
    if not file:
        raise SystemExit("set KVSTITCH_QUESTIONS to a JSONL file of objects with a `question`")
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    fields = json.loads(os.environ.get("KVSTITCH_REQUEST", "{}"))
    key = os.environ.get("KVSTITCH_API_KEY")
    return LocustSettings(
        questions=[json.loads(line)["question"] for line in lines if line.strip()],
        max_tokens=fields.pop("max_tokens", None),
        fields=fields,
        wait_s=float(os.environ.get("KVSTITCH_WAIT_S", "0")),
        headers={"Authorization": f"Bearer {key}"} if key else {},
    )


@events.init.add_listener  # type: ignore[untyped-decorator]
def fail_early(**_: Any) -> None:
    """Read the settings at the start, so that a wrong variable stops locust at once."""
    settings()


class StreamUser(HttpUser):
    """A user that asks a random question, reads the whole answer, and pauses."""

    abstract = True

    def route(self) -> Route:
        raise NotImplementedError

    def wait_time(self) -> float:
        return random.expovariate(1 / settings().wait_s) if settings().wait_s else 0.0

    @task
    def ask(self) -> None:
        route = self.route()
        request = LoadRequest(random.choice(settings().questions), max_tokens=settings().max_tokens)
        answer, parser = StreamedAnswer(), EventParser()
        started = time.perf_counter()
        with self.client.post(
            route.path,
            json=route.body(request, DEFAULT),
            headers=settings().headers,
            stream=True,
            catch_response=True,
            timeout=TIMEOUT_S,
        ) as reply:
            if reply.status_code != 200:
                reply.failure(f"HTTP {reply.status_code}: {reply.text[:200]}")
                return
            size = 0
            # chunk_size=None gives whatever has arrived, without waiting for more.
            for received in reply.iter_content(chunk_size=None):
                now = time.perf_counter()
                size += len(received)
                for event in parser.feed(received):
                    route.read(event, answer, now)
            if answer.error or answer.first_at is None or answer.ended_at is None:
                reply.failure(answer.error or "the stream broke off before the answer's end")
                return
            self._report("TTFT", route, answer.first_at - started)
            if answer.tpot_s is not None:
                self._report("TPOT", route, answer.tpot_s)
            # Locust's own time ends with the headers; this one covers the whole answer.
            reply.request_meta["response_time"] = 1000 * (answer.ended_at - started)
            reply.request_meta["response_length"] = size
            reply.success()

    def _report(self, kind: str, route: Route, seconds: float) -> None:
        self.environment.events.request.fire(
            request_type=kind,
            name=route.path,
            response_time=1000 * seconds,
            response_length=0,
            exception=None,
            context={},
        )


class RagUser(StreamUser):
    """Uses the service's own route."""

    def route(self) -> Route:
        return RagRoute(settings().fields)


class ChatUser(StreamUser):
    """Uses the OpenAI-compatible route."""

    def route(self) -> Route:
        return ChatRoute(fields=settings().fields)
