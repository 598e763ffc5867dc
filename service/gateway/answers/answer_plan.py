"""One answer on its way from the request to the message that the worker gets."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvstitch.records.answers import Citation, Condense, RetrievalNote
from retriever import Passage, Scope
from service.gateway.prompts.conversation import question_of
from service.gateway.schemas.generate import GenerateRequest
from service.gateway.search.search_query import SearchQuery
from service.grammars.forms import WrittenForm
from service.messages.requests import Generate, Method
from service.prompt import Turn


@dataclass(kw_only=True)
class AnswerPlan:
    """What the gateway knows of an answer. Validation makes it, preparation completes it."""

    request: GenerateRequest
    scope: Scope
    turns: list[Turn]
    search: SearchQuery | None
    condense: Condense
    fusion: Method
    eviction: Method | None
    adapter: str
    max_context: int
    estimated_tokens: int
    question_ids: list[int] | None = None
    condense_s: float = 0.0
    condense_tokens: int = 0
    passages: list[Passage] = field(default_factory=list)
    citations: list[Citation] = field(default_factory=list)
    generate: Generate = field(init=False, repr=False)
    stages: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    form: WrittenForm | None = None

    @property
    def question(self) -> str:
        """The text that is answered."""
        return question_of(self.turns)

    @property
    def doc_ids(self) -> dict[int, str]:
        """Chunk id to the id of its document."""
        return {passage.chunk.chunk_id: passage.chunk.doc_id for passage in self.passages}

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        message = self.generate
        documents = sum(len(document.ids) for document in message.documents)
        return len(message.system) + documents + len(message.question)

    @property
    def retrieval(self) -> RetrievalNote | None:
        """What was searched for, as the client gets it; None: nothing."""
        if self.search is None:
            return None
        return RetrievalNote(
            query=self.search.text, joined=self.search.joined, condense=self.condense
        )
