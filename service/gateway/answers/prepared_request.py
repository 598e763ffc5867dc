"""A request that is ready to be sent to the worker; answers and explanations are made from it."""

from __future__ import annotations

from dataclasses import dataclass

from retriever import Passage
from service.gateway.schemas.answer import Citation, RetrievalNote
from service.gateway.schemas.generate import GenerateRequest
from service.messages.requests import Generate


@dataclass(frozen=True)
class PreparedRequest:
    """A request that is ready to be sent to the worker.

    Attributes:
        request: As it was sent.
        question: The text that is answered.
        generate: The message.
        passages: The documents of the prompt, in its order.
        citations: The same as the client gets them.
        retrieval: What was searched for; None: nothing.
        prompt_tokens: Length of the prompt.
        condense_tokens: That the model read and wrote to find out what to search for.
        stages: Seconds of embed, retrieve, plan and, if it was asked for, rerank.
        warnings: For the client.
    """

    request: GenerateRequest
    question: str
    generate: Generate
    passages: list[Passage]
    citations: list[Citation]
    retrieval: RetrievalNote | None
    prompt_tokens: int
    condense_tokens: int
    stages: dict[str, float]
    warnings: list[str]

    @property
    def doc_ids(self) -> dict[int, str]:
        """Chunk id to the id of its document."""
        return {passage.chunk.chunk_id: passage.chunk.doc_id for passage in self.passages}
