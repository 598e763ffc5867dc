"""Follow-up questions: joined with earlier ones, or rewritten by the served model to stand alone.

To rewrite one, the instruction and the conversation are the prompt's Q; S is every request's, so
that its stored KV is used. The generation is short and greedy, and has a deadline of its own.
"""

import asyncio
import re
import uuid
from collections.abc import Sequence
from contextlib import aclosing, suppress

from kvstitch.service.errors import KvstitchError
from kvstitch.service.gateway.answers.methods import chosen_method
from kvstitch.service.gateway.fleet.worker_pool import Worker
from kvstitch.service.gateway.prompts.detokenizer import Detokenizer
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.gateway.schemas.generate import MethodChoice
from kvstitch.service.messages.replies import Failed, TokenItem
from kvstitch.service.messages.requests import Generate, Sampling
from kvstitch.service.prompt import Turn

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


async def rewritten(
    turns: Sequence[Turn], worker: Worker, prompts: PromptBuilder, tenant: str
) -> tuple[str, int]:
    """Have the last question rewritten by the served model; never fails. Returns the text, empty
    where it wrote nothing useful in time, and the tokens that it took."""
    spoken = [turn for turn in turns if turn.role != "system"]
    lines = [
        f"{turn.role.capitalize()}: {' '.join(turn.text[:TURN_CHARS].split())}\n"
        for turn in spoken[-TURNS - 1 :]
    ]
    asked = [Turn("user", f"{_INSTRUCTION}{''.join(lines)}{_CUE}")]
    tokens, text = 0, ""
    with suppress(TimeoutError, KvstitchError):
        request = Generate(
            id=f"condense-{uuid.uuid4().hex}",
            system=prompts.system,
            documents=[],
            question=prompts.encode_question(asked, begin_answer=False),
            fusion=chosen_method("fusion", MethodChoice(method="vanilla"), worker.require().fusion),
            sampling=Sampling(max_tokens=MAX_TOKENS),
            prefix_mode=prompts.prefix_mode,
            tenant=tenant,
        )
        tokens = len(request.system) + len(request.question)
        pieces, written = Detokenizer(prompts.tokenizer.decode, prompts.end_ids), ""
        # Leaving early aborts the generation.
        async with asyncio.timeout(DEADLINE_S), aclosing(worker.submit(request)) as stream:
            async for event in stream:
                match event:
                    case TokenItem():
                        tokens += 1
                        written += pieces.push(event.token)
                        if "\n" in written.lstrip():
                            break
                    case Failed():
                        written = ""
                        break
        text = written.lstrip().partition("\n")[0]
    text = _LABEL.sub("", text).strip().strip("\"'\u201c\u201d")
    longest = 2 * TURN_CHARS + len(turns[-1].text)
    return (text if any(map(str.isalnum, text)) and len(text) <= longest else ""), tokens
