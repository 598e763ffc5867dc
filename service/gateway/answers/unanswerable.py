"""What is done about a question that nothing found is about, and about small talk.

Small talk is answered by the model alone: a greeting has words like any question, and some passage
is always the nearest to it. It is told by its phrases, which are all that it consists of.
"""

import json
import re
from pathlib import Path
from typing import Final

from kvstitch.retriever.analysis.languages import surely
from kvstitch.retriever.analysis.spelling import fold
from kvstitch.service.gateway.schemas.generate import GenerateRequest

_TEXTS: Final = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_SMALL_TALK = re.compile(fold(rf"(?:(?:{'|'.join(_TEXTS['small_talk'])})\s*)+"))
_LONGEST = 120
_SIGNS = re.compile(r"[^\w]+|_+")


def is_small_talk(question: str) -> bool:
    """Return whether a text is greetings, thanks, or a question about the assistant, and nothing
    else."""
    if len(question) > _LONGEST:
        return False
    plain = _SIGNS.sub(" ", fold(question)).strip()
    return bool(_SMALL_TALK.fullmatch(plain))


def sentence(question: str, own: str) -> str:
    """Return what is said instead of an answer: `own`, or a sentence in the question's language
    where that is sure."""
    sentences: dict[str, str] = _TEXTS["sentences"]
    return own or sentences.get(surely(question), sentences["en"])


def only_a_model_answers(request: GenerateRequest) -> bool:
    """Return whether only the model can write this answer: it has a form or may be a call, goes on
    where a text ends, or is not wanted at all, but only its prompt computed."""
    return (
        request.guided is not None
        or request.tools is not None
        or request.continue_final_message
        or request.max_tokens == 0
    )
