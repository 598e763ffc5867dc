"""Prompt format and plan: S ‖ D_1..D_k ‖ Q as token ids.

Each segment is tokenised by itself; the ids are the truth for every method, full prefill
included. Nothing is ever decoded and encoded again. Knows no tokenizer library (an `Encoder` is
handed in), no HTTP, no KV.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from service.errors import InvalidRequest, PromptTooLong

FORMAT_FILE = "kvstitch.json"
PREFIX_MODES = ("none", "bos", "bos_keep", "system")


class Encoder(Protocol):
    """Text to ids. `bos` is the id that starts every prompt, or None."""

    bos: int | None

    def encode_text(self, text: str) -> list[int]:
        """User text: special tokens written in it are encoded as plain text, never obeyed."""
        ...

    def encode_template(self, template: str, **user_text: str) -> list[int]:
        """A template of ours (its special tokens count) filled with user text (whose do not)."""
        ...


@dataclass(frozen=True)
class Turn:
    """What somebody said in a conversation. role: system, user or assistant."""

    role: str
    text: str


@dataclass(frozen=True)
class PromptFormat:
    """A model's own defaults, from `kvstitch.json` in its folder or derived from its template.

    `document` holds {title} and {text}; `question` holds {question}; `answer` holds {answer} and
    is how an earlier answer is written behind its question. `prefix_mode` is what a chunk sees
    when it is precomputed (METHODS §0): nothing, BOS, BOS kept in the prompt, or S.
    """

    system: str
    document: str
    question: str
    answer: str = ""  # "": the answer, then what ends one: the first stop string or a blank line
    chunk_tokens: int = 512
    top_k: int = 5
    max_tokens: int = 256
    prefix_mode: str = "none"
    stop: tuple[str, ...] = ()
    bos: str | None = ""  # the token that starts a prompt; "": the tokenizer's own; None: none

    def __post_init__(self) -> None:
        if self.prefix_mode not in PREFIX_MODES:
            raise InvalidRequest(
                f"prefix_mode must be one of {', '.join(PREFIX_MODES)}, not {self.prefix_mode!r}",
                field="prefix_mode",
            )

    @classmethod
    def load(cls, folder: Path) -> PromptFormat | None:
        """The format in `folder`/kvstitch.json, or None where there is none."""
        path = folder / FORMAT_FILE
        if not path.exists():
            return None
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        prompt = raw.pop("prompt")
        return cls(**prompt, **{**raw, "stop": tuple(raw.get("stop", ()))})

    @property
    def earlier_answer(self) -> str:
        return self.answer or " {answer}" + (self.stop[0] if self.stop else "\n\n")

    def render_document(self, title: str, text: str) -> str:
        # Not str.format: user text may hold braces.
        if not title:
            return self.document.replace("{title}\n", "").replace("{text}", text)
        head, _, tail = self.document.partition("{text}")
        return head.replace("{title}", title) + text + tail.replace("{title}", title)


@dataclass(frozen=True)
class DocumentSegment:
    """One D_i: the catalog's chunk id and the token ids of its rendered text."""

    chunk_id: int
    ids: list[int]


@dataclass(frozen=True)
class PromptPlan:
    """Segments of one prompt, in order."""

    system: list[int]
    documents: list[DocumentSegment] = field(default_factory=list)
    question: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return len(self.system) + sum(len(d.ids) for d in self.documents) + len(self.question)


def system_ids(fmt: PromptFormat, encoder: Encoder) -> list[int]:
    """S: BOS where the model has one, then the instruction."""
    bos = [] if encoder.bos is None else [encoder.bos]
    return bos + encoder.encode_template(fmt.system)


def document_ids(fmt: PromptFormat, encoder: Encoder, title: str, text: str) -> list[int]:
    """The ids of one chunk, the same at precompute and at every request."""
    ids = encoder.encode_text(fmt.render_document(title, text))
    if fmt.prefix_mode == "bos_keep" and encoder.bos is not None:
        return [encoder.bos, *ids]
    return ids


def plan(
    fmt: PromptFormat,
    encoder: Encoder,
    documents: Sequence[DocumentSegment],
    question: list[int],
    *,
    max_context: int,
) -> PromptPlan:
    """S ‖ D ‖ Q for the ids of `question` over `documents`, in their order.

    Raises PromptTooLong when not even one answer token would fit into `max_context`.
    """
    planned = PromptPlan(
        system=system_ids(fmt, encoder),
        documents=list(documents),
        question=question,
    )
    if planned.tokens >= max_context:
        raise PromptTooLong(
            f"the prompt has {planned.tokens} tokens, the model takes {max_context - 1} and an "
            f"answer: lower top_k (now {len(documents)}) or shorten the question "
            f"({len(planned.question)} tokens)",
            field="question" if len(planned.question) >= max_context else "top_k",
        )
    return planned
