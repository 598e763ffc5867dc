"""The prompts of one model: format, tokenizer and cached segments. Knows no request or socket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from retriever import Chunk, ChunkSettings
from service import prompt
from service.gateway.prompts.conversation import conversation_format
from service.gateway.prompts.detokenizer import AnswerText
from service.gateway.prompts.format import load_format, without_bos
from service.gateway.prompts.model_folder import ModelFolder
from service.gateway.prompts.tokenizer import SegmentIdCache, ServingTokenizer
from service.settings import Settings


class PromptBuilder:
    """Turns chunks and questions into segments of ids, and answers' ids into text."""

    def __init__(self, path: Path, settings: Settings) -> None:
        """Raises ModelRefused if the folder's tokenizer or prompt format cannot be used."""
        folder = ModelFolder(path)
        fmt = load_format(folder)
        self.tokenizer = ServingTokenizer(folder, bos=fmt.bos)
        overrides: dict[str, Any] = {
            name: value
            for name in ("chunk_tokens", "top_k", "prefix_mode")
            if (value := getattr(settings, name)) is not None
        }
        self.format = replace(without_bos(fmt, self.tokenizer.bos_text), **overrides)
        self.model = settings.model_name
        self.created = folder.created
        self.end_ids = folder.end_ids
        self.system = prompt.system_ids(self.format, self.tokenizer)
        self._conversations = conversation_format(self.format, folder)
        self._ids = SegmentIdCache()

    @property
    def prefix_mode(self) -> str:
        return self.format.prefix_mode

    def chunking(self) -> ChunkSettings:
        """How the retriever is to cut documents so that rendered segments fit."""
        own = self.format.prefix_mode == "bos_keep" and self.tokenizer.bos is not None
        return ChunkSettings(
            tokenizer=self.tokenizer,
            max_tokens=self.format.chunk_tokens - own,
            render=self.format.render_document,
        )

    def segment(self, chunk: Chunk) -> list[int]:
        """The ids of a chunk, the same at precompute and at every request."""

        def encode() -> list[int]:
            return prompt.document_ids(self.format, self.tokenizer, chunk.title, chunk.text)

        if chunk.chunk_id < 0:  # an inline document's: the id names another text next time
            return encode()
        return self._ids.get(chunk.chunk_id, chunk.revision, encode)

    def segments(self, chunks: Sequence[Chunk]) -> list[prompt.DocumentSegment]:
        return [prompt.DocumentSegment(c.chunk_id, self.segment(c)) for c in chunks]

    def plan(
        self,
        documents: Sequence[prompt.DocumentSegment],
        turns: Sequence[prompt.Turn],
        *,
        max_context: int,
    ) -> prompt.PromptPlan:
        """S ‖ D ‖ Q of a normalised conversation. Raises PromptTooLong, or InvalidRequest if the
        model cannot be given such a conversation."""
        template = self._conversations.template(tuple(turn.role for turn in turns))
        texts = {f"t{number}": turn.text for number, turn in enumerate(turns)}
        question = self.tokenizer.encode_template(template, **texts)
        return prompt.plan(
            self.format, self.tokenizer, documents, question, max_context=max_context
        )

    def estimate(self, turns: Sequence[prompt.Turn], top_k: int) -> int:
        """About how many tokens a prompt will have, known before any work."""
        question = sum(len(turn.text) for turn in turns) // 3
        return len(self.system) + top_k * self.format.chunk_tokens + question

    def answer_text(self, stops: Sequence[str]) -> AnswerText:
        return AnswerText(self.tokenizer.decode, self.end_ids, [*self.format.stop, *stops])
