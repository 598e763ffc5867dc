"""A small HTTP client of the service for the demo: readiness, ingestion, questions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from demo.corpus_files import CorpusDocument

POLL_SECONDS = 0.2


class ServiceError(RuntimeError):
    """The service refused, failed a job, or ended a stream with an error."""


@dataclass(frozen=True)
class Answer:
    """One answered question.

    Attributes:
        ttft: Time to first token in seconds, measured by the client from sending the request.
        cited: Document ids, as cited, in order.
        done: The data of the stream's last event.
    """

    text: str
    ttft: float
    cited: tuple[str, ...]
    done: dict[str, Any]

    @property
    def server_ttft(self) -> float | None:
        """Time to first token in seconds as the server reports it, if it does."""
        value = (self.done.get("timing") or {}).get("ttft_s")
        return float(value) if value is not None else None


class Client:
    """A typed client over httpx, used as a context manager."""

    def __init__(self, base_url: str, timeout: float = 120.0) -> None:
        self._http = httpx.Client(base_url=base_url, timeout=timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def ready(self) -> bool:
        try:
            return self._http.get("/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def precompute(self, documents: list[CorpusDocument]) -> str:
        """Sends documents to be precomputed.

        Returns:
            The id of the job that precomputes them.

        Raises:
            ServiceError: The service did not accept the documents.
        """
        body = [
            {"doc_id": d.doc_id, "text": d.text, "title": d.title, "metadata": {"source": "demo"}}
            for d in documents
        ]
        reply = self._http.post("/admin/precompute", json={"documents": body})
        if reply.status_code != 202:
            raise ServiceError(f"POST /admin/precompute: {reply.status_code} {reply.text[:500]}")
        return str(reply.json()["job_id"])

    def progress(self, job_id: str) -> Iterator[tuple[int, int]]:
        """Polls a job until it has succeeded.

        Yields:
            Documents done, and documents in all.

        Raises:
            ServiceError: The job failed.
        """
        while True:
            reply = self._http.get(f"/admin/jobs/{job_id}")
            reply.raise_for_status()
            job = reply.json()
            yield int(job["progress"]["done"]), int(job["progress"]["total"])
            if job["state"] == "succeeded":
                return
            if job["state"] == "failed":
                raise ServiceError(f"precompute job failed: {json.dumps(job)[:500]}")
            time.sleep(POLL_SECONDS)

    def wait_complete(self) -> None:
        """Waits until nothing is left to compute of the documents."""
        while True:
            reply = self._http.get("/status")
            reply.raise_for_status()
            if reply.json()["corpus"]["complete"]:
                return
            time.sleep(POLL_SECONDS)

    def ask(
        self, question: str, method: str, ratio: float | None = None, top_k: int = 3, **more: Any
    ) -> Answer:
        """Asks a question, reads the streamed answer and times its first token.

        Args:
            more: Further fields of the request.

        Raises:
            ServiceError: The service refused the request, or the stream ended in an error.
        """
        text = ""
        cited: tuple[str, ...] = ()
        ttft = float("nan")
        began = time.perf_counter()
        body = request_body(question, method, ratio, top_k) | more
        with self._http.stream("POST", "/v1/rag/generate", json=body) as reply:
            if reply.status_code != 200:
                reply.read()
                raise ServiceError(f"POST /v1/rag/generate: {reply.status_code} {reply.text[:500]}")
            for event, data in server_sent_events(reply.iter_lines()):
                if event == "sources":
                    cited = tuple(str(c["doc_id"]) for c in data["citations"])
                elif event == "token":
                    if not text and ttft != ttft:
                        ttft = time.perf_counter() - began
                    text += str(data["text"])
                elif event == "error":
                    raise ServiceError(f"stream ended in an error: {json.dumps(data)[:500]}")
                elif event == "done":
                    return Answer(str(data.get("text", text)).strip(), ttft, cited, data)
        raise ServiceError("stream ended without a done event")


def request_body(question: str, method: str, ratio: float | None, top_k: int) -> dict[str, Any]:
    fusion: dict[str, Any] = {"method": method}
    if ratio is not None:
        fusion["ratio"] = ratio
    return {
        "question": question,
        "top_k": top_k,
        "fusion": fusion,
        "max_tokens": 16,
        "temperature": 0,
        "stream": True,
        "prefix_cache": False,  # what an earlier prompt left would hide what a method costs
    }


def server_sent_events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Decodes a stream of server-sent events; skips comments and keep-alives.

    Yields:
        Name of the event, and its JSON data.
    """
    event, data = "message", ""
    for line in lines:
        if not line:
            if data:
                yield event, json.loads(data)
            event, data = "message", ""
        elif line.startswith("event:"):
            event = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].lstrip()
    if data:
        yield event, json.loads(data)
