"""What the HTTP layer needs of the gateway.

The composition root satisfies this protocol. It stands here so that routes need not import the
composition root, which lies above them.
"""

from __future__ import annotations

from typing import Protocol

from service.gateway.admission import ConcurrencyLimiter
from service.gateway.answers.answer_service import AnswerService
from service.gateway.answers.default_methods import DefaultMethods
from service.gateway.auth.access import Access
from service.gateway.disk_guard import DiskGuard
from service.gateway.documents.corpus import Corpus
from service.gateway.fleet.worker_state import WorkerState
from service.gateway.prometheus import GatewayMetrics
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.search.async_retriever import AsyncRetriever
from service.gateway.search.embedding_service import EmbeddingService
from service.gateway.search.rerank_service import RerankService
from service.gateway.search.search_service import SearchService
from service.gateway.worker_client.protocol import Worker
from service.settings import Settings


class GatewayServices(Protocol):
    """The parts of one gateway process that routes and middleware use."""

    @property
    def settings(self) -> Settings: ...

    @property
    def access(self) -> Access: ...

    @property
    def answers(self) -> AnswerService: ...

    @property
    def corpus(self) -> Corpus: ...

    @property
    def default_methods(self) -> DefaultMethods: ...

    @property
    def disk(self) -> DiskGuard: ...

    @property
    def limiter(self) -> ConcurrencyLimiter: ...

    @property
    def metrics(self) -> GatewayMetrics: ...

    @property
    def prompts(self) -> PromptBuilder: ...

    @property
    def retriever(self) -> AsyncRetriever: ...

    @property
    def searches(self) -> SearchService: ...

    @property
    def rerankings(self) -> RerankService: ...

    @property
    def embeddings(self) -> EmbeddingService: ...

    @property
    def worker(self) -> Worker: ...

    @property
    def worker_pid(self) -> int | None:
        """Process id of the first worker that the gateway started, None if there is none."""
        ...

    def worker_states(self) -> list[WorkerState]:
        """What is known of every worker."""
        ...

    def not_ready(self) -> str | None:
        """Why requests are refused now, None if they are served."""
        ...
