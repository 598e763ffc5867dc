"""Follow-up questions: joined with earlier ones, or rewritten by the served model to stand alone.

To rewrite one, the instruction and the conversation are the prompt's Q; S is every request's, so
that its stored KV is used. The generation is short and greedy, and has a deadline of its own.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from service.errors import KvstitchError
from service.gateway.answers.methods import chosen_method
from service.gateway.prompts.detokenizer import Detokenizer
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.schemas.generate import MethodChoice
from service.gateway.worker_client.protocol import Worker
from service.messages.replies import Failed, TokenItem
from service.messages.requests import Generate, Sampling
from service.prompt import Turn

MAX_TOKENS = 64
DEADLINE_S = 3.0
TURNS = 6
"""Of the conversation, the last ones before the question."""
TURN_CHARS = 400
"""Of each of them; of a longer one the beginning."""

EARLIER_QUESTIONS = 3  # that a question is joined with
QUESTION_CHARS = 400  # of each of them; of a longer one the beginning

_INSTRUCTION = (
    "Rewrite the last question of a conversation so that it can be understood alone: put names in "
    "the place of words such as it, they and there. Write the question only.\n\n"
    "User: Who built the Eiffel Tower?\n"
    "Assistant: Gustave Eiffel's company.\n"
    "User: How tall is it?\n"
    "Rewritten question: How tall is the Eiffel Tower?\n\n"
)
_CUE = "Rewritten question:"
_LABEL = re.compile(r"^(?:User|Question|Rewritten question|Rewritten)\s*:\s*", re.IGNORECASE)


def joined_query(turns: Sequence[Turn], question: str | None = None) -> str | None:
    """Join the question, or the part of it that is searched for, with the user's earlier ones, the
    latest first; None: there are none."""
    asked = [turn.text for turn in reversed(turns) if turn.role == "user" and turn.text.strip()]
    if len(asked) < 2:
        return None
    earlier = (text[:QUESTION_CHARS] for text in asked[1 : 1 + EARLIER_QUESTIONS])
    return " ".join([asked[0] if question is None else question, *earlier])


@dataclass
class Rewriting:
    """A rewritten question."""

    text: str | None = None
    tokens: int = 0


class QuestionRewriter:
    """Has follow-up questions rewritten by the served model. Stateless."""

    def __init__(self, worker: Worker, prompts: PromptBuilder) -> None:
        self._worker = worker
        self._prompts = prompts

    async def rewrite(self, turns: Sequence[Turn], *, tenant: str) -> Rewriting:
        """Have the last question rewritten; never fails."""
        out = Rewriting()
        try:
            async with asyncio.timeout(DEADLINE_S):
                text = await self._generated(turns, tenant, out)
        except (TimeoutError, KvstitchError):
            return out
        text = _LABEL.sub("", text).strip().strip("\"'\u201c\u201d")
        longest = 2 * TURN_CHARS + len(turns[-1].text)
        if any(map(str.isalnum, text)) and len(text) <= longest:
            out.text = text
        return out

    async def _generated(self, turns: Sequence[Turn], tenant: str, out: Rewriting) -> str:
        """Return the first line that the model writes; counts tokens in `out`."""
        prompts, ready = self._prompts, self._worker.require()
        question = [Turn("user", _instruction(turns))]
        request = Generate(
            id=f"condense-{uuid.uuid4().hex}",
            system=prompts.system,
            documents=[],
            question=prompts.encode_question(question, begin_answer=False),
            fusion=chosen_method("fusion", MethodChoice(method="vanilla"), ready.fusion),
            sampling=Sampling(max_tokens=MAX_TOKENS),
            prefix_mode=prompts.prefix_mode,
            tenant=tenant,
        )
        out.tokens = len(request.system) + len(request.question)
        pieces, text = Detokenizer(prompts.tokenizer.decode, prompts.end_ids), ""
        # Leaving early aborts the generation.
        async with aclosing(self._worker.submit(request)) as stream:
            async for event in stream:
                match event:
                    case TokenItem():
                        out.tokens += 1
                        text += pieces.push(event.token)
                        if "\n" in text.lstrip():
                            break
                    case Failed():
                        return ""
        return text.lstrip().partition("\n")[0]


def _instruction(turns: Sequence[Turn]) -> str:
    spoken = [turn for turn in turns if turn.role != "system"]
    lines = [
        f"{turn.role.capitalize()}: {' '.join(turn.text[:TURN_CHARS].split())}\n"
        for turn in (*spoken[-TURNS - 1 : -1], spoken[-1])
    ]
    return f"{_INSTRUCTION}{''.join(lines)}{_CUE}"
