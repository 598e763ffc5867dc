"""Prompt format: how the system prompt, a document and a question are written and encoded.

A prompt is S ‖ D_1 … D_k ‖ Q: system prompt, documents, question. Each segment is tokenised by
itself, and its token ids are final: no method, not even full prefill, decodes and encodes them
again. The tokenizer comes in as an `Encoder`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from kvstitch.service.errors import InvalidRequest

FORMAT_FILE = "kvstitch.json"
CHUNK_PREFIX_MODES = ("primer", "neighbours")
"""Prefix modes in which other chunks stand between S and a chunk when it is precomputed."""
PREFIX_MODES = ("none", "bos", "bos_keep", "system", *CHUNK_PREFIX_MODES)
PASSAGE_ORDERS = ("best_first", "best_last")


class Placed(Protocol):
    """A passage that knows where it comes from."""

    @property
    def position(self) -> tuple[str, int]:
        """The document, and the passage's number in it."""


P = TypeVar("P", bound=Placed)


class Encoder(Protocol):
    """Turns text into token ids."""

    bos: int | None

    def encode_template(self, template: str, **user_text: str) -> list[int]:
        """Encode a template with its `{names}` filled in."""
        ...


@dataclass(frozen=True)
class ToolCall:
    """A function that an answer calls; `arguments` is the JSON text of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Turn:
    """One message of a conversation."""

    role: str  # system, user, assistant, or tool: what a called function gave
    text: str  # the message
    calls: tuple[ToolCall, ...] = ()  # of an assistant: the functions that it calls
    call_id: str = ""  # of a tool: the call that it answers

    @property
    def chars(self) -> int:
        """Characters of all that it holds."""
        return len(self.text) + sum(len(call.name) + len(call.arguments) for call in self.calls)


@dataclass(frozen=True)
class PromptFormat:
    """How prompts are written for a model, and the model's defaults.

    Comes from `kvstitch.json` in the model's folder, or is derived from its chat template.

    Attributes:
        system: The system prompt S.
        document, question: Templates, with {title} and {text}, and with {question}.
        answer: Template of an earlier answer in a conversation, with {answer}. Empty: the answer
            and then what ends one, the first stop string or a blank line.
        answer_prefix: The words that every answer begins with, e.g. "The answer is". They are the
            end of the prompt, behind the question, and of the answer's text its beginning.
        passage_order: Where the best of the passages that a search has found stands in the prompt:
            best_first, or best_last, next to the question. Small models read best what they have
            read last.
        prefix_mode: What a chunk attends to when it is precomputed: nothing (none), BOS (bos), BOS
            that stays in the prompt (bos_keep), the system prompt (system), or the system prompt
            and other chunks of the collection: the same ones for a group (primer, which was closest
            to full prefill on every chat model that was measured), or the nearest (neighbours).
        bos: The token that starts a prompt. Empty: the tokenizer's own; None: none.
    """

    system: str
    document: str
    question: str
    answer: str = ""
    answer_prefix: str = ""
    chunk_tokens: int = 512
    top_k: int = 5
    passage_order: str = "best_first"
    max_tokens: int = 256
    prefix_mode: str = "primer"
    stop: tuple[str, ...] = ()
    bos: str | None = ""

    def __post_init__(self) -> None:
        for name, known in (("prefix_mode", PREFIX_MODES), ("passage_order", PASSAGE_ORDERS)):
            value = getattr(self, name)
            if value not in known:
                raise InvalidRequest(
                    f"{name} must be one of {', '.join(known)}, not {value!r}", field=name
                )

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read `folder`/kvstitch.json; None if there is no such file."""
        path = folder / FORMAT_FILE
        if not path.exists():
            return None
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        prompt = raw.pop("prompt")
        return cls(**prompt, **{**raw, "stop": tuple(raw.get("stop", ()))})

    @property
    def earlier_answer(self) -> str:
        """The template of an earlier answer, with the default filled in."""
        return self.answer or " {answer}" + (self.stop[0] if self.stop else "\n\n")

    def in_prompt_order(self, ranked: Sequence[P]) -> list[P]:
        """Passages, ranked by a search, in the order in which the prompt holds them.

        Those of one document stand together, where the best of them would, in the document's order.
        """
        documents = list(dict.fromkeys(passage.position[0] for passage in ranked))
        if self.passage_order == "best_last":
            documents.reverse()
        return sorted(ranked, key=lambda p: (documents.index(p.position[0]), p.position[1]))

    def render_document(self, title: str, text: str) -> str:
        """Return the text of a document; one without a title has no line for it."""
        # Not str.format, because user text may hold braces.
        if not title:
            return self.document.replace("{title}\n", "").replace("{text}", text)
        head, _, tail = self.document.partition("{text}")
        return head.replace("{title}", title) + text + tail.replace("{title}", title)


def system_ids(fmt: PromptFormat, encoder: Encoder) -> list[int]:
    """Return ids of the system prompt S: BOS if the model has one, then the instruction."""
    bos = [] if encoder.bos is None else [encoder.bos]
    return bos + encoder.encode_template(fmt.system)
