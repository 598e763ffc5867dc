"""What usual clients do, in the same order every hundred requests: ask in every form, list, leave
early, make mistakes, hand in and delete."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice

from tests.e2e.service import Service

GENERATE = "/v1/rag/generate"


class UsualClient:
    """One client; every request is right in what it expects, or AssertionError.

    Args:
        service: a service that knows documents.
        questions: what is asked, again and again.
    """

    def __init__(self, service: Service, questions: Sequence[str], seed: int) -> None:
        self._service = service
        self._questions = questions
        self._rng = random.Random(seed)
        self._sent = 0

    def send(self, requests: int) -> None:
        for _ in range(requests):
            match self._sent % 20:
                case 0:
                    self._ingest_and_delete()
                case 1 | 2 | 3:
                    self._listen(None)
                case 4 | 5:
                    self._listen(2)
                case 6 | 7 | 8:
                    self._chat()
                case 9 | 10:
                    self._expect(422, top_k=-1)
                case 11:
                    self._expect(200, explain=True)
                case 12:
                    self._look()
                case n:
                    method = ("a3", "pie", "cacheblend", "full_reuse", "vanilla")[n % 5]
                    self._expect(200, fusion={"method": method})
            self._sent += 1

    def _question(self) -> str:
        return self._rng.choice(self._questions)

    def _expect(self, status: int, **fields: object) -> None:
        reply = self._service.post(self._question(), **{"max_tokens": 4, **fields})
        assert reply.status_code == status, reply.text

    def _listen(self, leave_after: int | None) -> None:
        """Read a stream to its end, or leave after some events."""
        with self._service.stream(self._question(), max_tokens=12) as events:
            seen = [name for name, _ in islice(events, leave_after)]
        assert leave_after or seen[-1] == "done", seen

    def _chat(self) -> None:
        body = {"messages": [{"role": "user", "content": self._question()}], "max_tokens": 4}
        reply = self._service.http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text

    def _look(self) -> None:
        for path in ("/admin/documents", "/status", "/metrics", "/v1/models"):
            assert self._service.http.get(path).status_code == 200

    def _ingest_and_delete(self) -> None:
        text = f"The number of this day is {self._rng.randrange(10**6)}."
        self._service.ingest([{"doc_id": "passing", "text": text}])
        reply = self._service.http.delete("/admin/documents/passing")
        assert reply.status_code == 200, reply.text
