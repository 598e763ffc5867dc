"""One prompt of the run: as texts for kvstitch, and as token ids for the other servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.prompt import Turn
from kvstitch.service.settings import Settings
from loadtest.traffic.routes import CorpusDocument

CHUNK_TOKENS = 512
"""A passage of Natural Questions is one chunk."""
PREFIX_MODE = "system"
"""What documents that come with a question stand behind, whatever the model's folder says."""


@dataclass(frozen=True)
class Prompt:
    """What is asked.

    Attributes:
        key: its name, the same in every run with the same seed.
        workload: the row of the table that it belongs to.
        turns: the conversation; the last turn is the question.
        documents: in the order of the prompt.
        ids: the whole prompt as token ids; empty until `Encoder.encoded`.
    """

    key: str
    workload: str
    turns: tuple[Turn, ...]
    documents: tuple[CorpusDocument, ...]
    ids: tuple[int, ...] = field(default=(), repr=False)


class Encoder:
    """Writes prompts exactly as kvstitch does for this model.

    Args:
        model: the model's folder.
    """

    def __init__(self, model: Path) -> None:
        given = {"chunk_tokens": CHUNK_TOKENS, "prefix_mode": PREFIX_MODE}
        self._builder = PromptBuilder(model, Settings.model_validate(given))

    @property
    def answer_prefix(self) -> str:
        """The words that begin every answer."""
        return self._builder.format.answer_prefix

    def ids(self, turns: Sequence[Turn], documents: Sequence[CorpusDocument]) -> tuple[int, ...]:
        builder = self._builder
        out = list(builder.system)
        for each in documents:
            out += builder.document_ids(each.title, each.text)
        return (*out, *builder.encode_question(turns))
