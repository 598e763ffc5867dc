"""What the demo asks a service for: ingestion, questions; by kvstitch.client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
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
        cited: Document ids, as cited, in the order of the prompt.
        prompt_tokens: Of the whole prompt.
        cached_tokens: Of these, those whose KV was not computed anew.
    """

    text: str
    ttft: float
    cited: tuple[str, ...]
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Client:
    """Used as a context manager."""

    def __init__(self, base_url: str, timeout: float = 120.0) -> None:
        self._client = kvstitch.client.Client(base_url, timeout_s=timeout, max_retries=0)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def precompute(self, documents: list[CorpusDocument]) -> Iterator[tuple[int, int]]:
        """Send documents to be precomputed, and wait for them.

        Yields documents done, and documents in all. Raises ServiceError if the job failed.
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
        self,
        question: str,
        method: str | None = None,
        *,
        on_text: Callable[[str], None] = lambda text: None,
        **more: Any,
    ) -> Answer:
        """Ask a question, read the streamed answer and time its first token.

        Args:
            question: In plain text.
            method: Of fusion; none: the service's default.
            on_text: Is given each piece of the answer as it arrives.
            more: Further fields of the request.
        """
        ttft = float("nan")
        body = request_body(question, method) | more
        del body["question"], body["stream"]
        began = time.perf_counter()
        with self._client.stream(question, **cast(GenerateOptions, body)) as stream:
            for event in stream:
                if isinstance(event, Token):
                    ttft = time.perf_counter() - began if ttft != ttft else ttft
                    on_text(event.text)
            found = stream.result
        cited = tuple(citation.doc_id for citation in found.citations)
        usage = found.raw["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return Answer(found.text.strip(), ttft, cited, usage["prompt_tokens"], cached)


def request_body(question: str, method: str | None, top_k: int | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "question": question,
        "max_tokens": 16,
        "temperature": 0,
        "stream": True,
        "prefix_cache": False,  # what an earlier prompt left would hide what a method costs
    }
    if method is not None:
        body["fusion"] = {"method": method}
    return body | ({"top_k": top_k} if top_k is not None else {})
