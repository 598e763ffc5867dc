"""Questions to tune with: the user's own, or made from sentences of the documents.

A small model cannot be asked to write questions about a text, so they are made from its sentences:
in turns, what the documents say about a name or a rare word of the sentence, and the beginning of
the sentence, which is to be completed. Both need the passage to be answered.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvstitch.service.errors import InvalidRequest

ABOUT = "What do the documents say about {subject}?"
COMPLETE = "How does this sentence of the documents go on: {beginning} …"
LEAST_WORDS = 8
"""A shorter sentence has no end worth asking for."""
MOST_WORDS = 60
KNOWN_SHARE = 0.6
"""Of a sentence's words that are given when the rest is asked for."""

_SENTENCE = re.compile(r"[^.!?\n]+[.!?]?")
_WORD = re.compile(r"\w[\w'-]*")
_NAME = re.compile(r"(?<=\w )[A-Z][\w'-]+(?: [A-Z][\w'-]+)*")


def of_file(path: Path) -> list[str]:
    """Return the questions of a JSONL file: objects with `question`, or plain strings."""
    questions = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}", field="questions") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
            question = raw if isinstance(raw, str) else raw["question"]
            if not isinstance(question, str) or not question.strip():
                raise ValueError("it is empty")
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(
                f"{path}, line {number}: expected an object with `question` ({error!r})",
                field="questions",
            ) from error
        questions.append(question)
    if len(questions) < 2:
        raise InvalidRequest(
            f"{path} holds {len(questions)} questions: two at least are needed, one to choose by "
            "and one to test with",
            field="questions",
        )
    return questions


def of_passages(texts: Sequence[str], rng: random.Random) -> list[str]:
    """Return one question for each text that has a sentence to ask about."""
    counts = Counter(word.lower() for text in texts for word in set(_WORD.findall(text)))
    questions: list[str] = []
    for text in texts:
        sentences = list(_sentences(text))
        if sentences:
            sentence = rng.choice(sentences)
            complete = len(questions) % 2
            questions.append(_completed(sentence) if complete else _about(sentence, counts))
    return list(dict.fromkeys(questions))


def _sentences(text: str) -> Iterator[str]:
    for found in _SENTENCE.findall(text):
        sentence = " ".join(found.split())
        if LEAST_WORDS <= len(sentence.split()) <= MOST_WORDS:
            yield sentence


def _completed(sentence: str) -> str:
    words = sentence.split()
    return COMPLETE.format(beginning=" ".join(words[: int(KNOWN_SHARE * len(words))]))


def _about(sentence: str, counts: Counter[str]) -> str:
    """Return a name in the sentence, the longest one, else its rarest long word."""
    names = _NAME.findall(sentence)
    if names:
        return ABOUT.format(subject=max(names, key=len))
    words = _WORD.findall(sentence)
    return ABOUT.format(subject=min(words, key=lambda word: (counts[word.lower()], -len(word))))
