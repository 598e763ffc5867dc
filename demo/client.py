"""What the demo asks a service for: ingestion, questions; by kvstitch.client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import kvstitch.client
from demo.corpus_files import CorpusDocument
from kvstitch.client import Token
from kvstitch.client.options import GenerateOptions

POLL_SECONDS = 0.2


class ServiceError(RuntimeError):
    """The service could not be started, or failed a job."""


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
    """What the demo asks a service for, used as a context manager."""

    def __init__(self, base_url: str, timeout: float = 120.0) -> None:
        self._client = kvstitch.client.Client(base_url, timeout_s=timeout, max_retries=0)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def precompute(self, documents: list[CorpusDocument]) -> Iterator[tuple[int, int]]:
        """Send documents to be precomputed, and wait for them.

        Yields:
            Documents done, and documents in all.

        Raises:
            ServiceError: The job failed.
        """
        source = {"source": "demo"}
        job = self._client.precompute(
            [
                {"doc_id": d.doc_id, "text": d.text, "title": d.title, "metadata": source}
                for d in documents
            ]
        )
        while True:
            yield job.progress.done, job.progress.total
            if job.ended:
                break
            time.sleep(POLL_SECONDS)
            job = self._client.get_job(job.job_id)
        if job.state != "succeeded":
            raise ServiceError(f"precompute job {job.state}: {json.dumps(dict(job.raw))[:500]}")

    def wait_complete(self) -> None:
        """Wait until nothing is left to compute of the documents."""
        while not self._client.status()["corpus"]["complete"]:
            time.sleep(POLL_SECONDS)

    def ask(
        self, question: str, method: str, ratio: float | None = None, top_k: int = 3, **more: Any
    ) -> Answer:
        """Ask a question, read the streamed answer and time its first token.

        Args:
            question: In plain text.
            method: Of fusion.
            ratio: Where the method has one.
            top_k: Passages to answer from.
            more: Further fields of the request.
        """
        ttft = float("nan")
        body = request_body(question, method, ratio, top_k) | more
        del body["question"], body["stream"]
        began = time.perf_counter()
        with self._client.stream(question, **cast(GenerateOptions, body)) as stream:
            for event in stream:
                if isinstance(event, Token) and ttft != ttft:
                    ttft = time.perf_counter() - began
            found = stream.result
        cited = tuple(citation.doc_id for citation in found.citations)
        return Answer(found.text.strip(), ttft, cited, dict(found.raw))


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
