"""The gauges of documents, chunks and jobs, and of the database that they are in."""

from __future__ import annotations

import asyncio
import time

from service.gateway.documents.jobs.job_store import JobStore
from service.gateway.prometheus import GatewayMetrics
from service.gateway.retrieval.async_retriever import AsyncRetriever
from service.shared.metrics import JOB_STATES


class CorpusGauges:
    def __init__(self, jobs: JobStore, retriever: AsyncRetriever, metrics: GatewayMetrics) -> None:
        self._jobs = jobs
        self._retriever = retriever
        self._metrics = metrics
        # Indexes are rebuilt in the background, at no event that would be seen here.
        self._heard_at: float | None = None
        metrics.database_silence.set_function(self._silence_s)
        metrics.index_recall.set_function(lambda: retriever.index_recall)

    async def refresh(self) -> None:
        """Count anew, after documents or jobs have changed."""
        counts = await self._retriever.counts()
        self._metrics.documents.set(counts.documents)
        self._metrics.chunks.set(counts.chunks)
        states = await asyncio.to_thread(self._jobs.states)
        for state in JOB_STATES:
            self._metrics.jobs.labels(state).set(states.get(state, 0))

    def heard(self) -> None:
        """The database has taken a sign of life."""
        self._heard_at = time.monotonic()

    def _silence_s(self) -> float:
        return 0.0 if self._heard_at is None else time.monotonic() - self._heard_at
