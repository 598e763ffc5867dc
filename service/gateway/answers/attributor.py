"""Attributes an answer's sentences to the passages of its prompt.

Marks that the model wrote, [2] or [2, 3], say where a sentence is from. Without one, it is the
passage that shares most of the sentence's words, if it shares enough. The model is asked for marks
in Q, which lists the passages: the KV of S and the documents serves every question.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from kvstitch.records.answers import Answer, Attribution
from kvstitch.service.gateway.answers.support import Support, SupportScorer, sentences
from kvstitch.service.gateway.answers.validation import AnswerPlan
from kvstitch.service.prompt import Turn

_MARK = re.compile(r"\s?\[(\d{1,4}(?:\s*,\s*\d{1,4})*)\]")
_FENCED = re.compile(r"^(?: {0,3})(`{3,}|~{3,}).*?(?:^ {0,3}\1|\Z)", re.MULTILINE | re.DOTALL)
_CLOSING = re.compile(r"[.!?\u2026\u3002\uff01\uff1f]+[\"'\u201d\u2019)]*$")


def marks_in(text: str) -> list[int]:
    """Return the numbers of all marks, each once, in the order of the text."""
    found = (int(number) for mark in _MARK.finditer(text) for number in mark[1].split(","))
    return list(dict.fromkeys(found))


def without_marks(text: str) -> str:
    return _MARK.sub("", text)


def with_marks(text: str, sentences: Sequence[Attribution]) -> tuple[str, list[Attribution]]:
    """Put a mark at the end of every sentence that has citations, before its full stop; return the
    text, and where the sentences are in it. Code between fences gets none: it would not run."""
    code = [span.span() for span in _FENCED.finditer(text)]
    out, done = "", 0
    moved: list[Attribution] = []
    for each in sentences:
        out += text[done : each.start]
        sentence, done = text[each.start : each.end], each.end
        in_code = any(start < each.end <= end for start, end in code)
        if each.citations and not in_code:
            closing = _CLOSING.search(sentence)
            end = len(sentence) if closing is None else closing.start()
            mark = f" [{', '.join(map(str, each.citations))}]"
            sentence = f"{sentence[:end]}{mark}{sentence[end:]}"
        moved.append(replace(each, start=len(out), end=len(out) + len(sentence)))
        out += sentence
    return out + text[done:], moved


TITLE_CHARS = 80


def asking_for_marks(turns: Sequence[Turn], titles: Sequence[str]) -> list[Turn]:
    """Return the conversation with the request for marks at the end of the user's last text.

    `titles` are the passages', in the prompt's order.
    """
    out = list(turns)
    last = max(number for number, turn in enumerate(out) if turn.role == "user")
    listed = "\n".join(f"[{n}] {title[:TITLE_CHARS]}" for n, title in enumerate(titles, 1))
    request = (
        f"These are the documents above, in their order:\n{listed}\n"
        "End every sentence of your answer with the number of the document that it is from, "
        "written like this: [1]."
    )
    if titles:
        out[last] = replace(out[last], text=f"{out[last].text}\n\n{request}")
    return out


MIN_SUPPORT = 0.4
"""A sentence of which no passage holds this share is attributed to none."""
AS_GOOD = 0.95
"""Passages with at least this share of the best one's score are cited beside it."""

INLINE_CHARS = 4096
"""Of answer and passages; in fewer they are found at once: a change of threads takes longer."""


@dataclass(frozen=True)
class AttributedAnswer:
    """The sentences of an answer, and the passages that support them."""

    sentences: list[Attribution] = field(default_factory=list)
    quotes: dict[int, Support] = field(default_factory=dict)
    unknown_marks: list[int] = field(default_factory=list)


def attribute(
    answer: str,
    passages: Sequence[tuple[str, str]],
    question: str,
    *,
    begun: str = "",
    marked: bool = False,
) -> AttributedAnswer:
    """Attribute an answer. Takes time in proportion to the text of all passages.

    Args:
        passages: (title, text) of each, in the order of the prompt.
        begun: The words with which the prompt has begun the answer; no passage supports them.
        marked: Whether the model was asked to write marks.
    """
    out = AttributedAnswer()
    if not passages:
        return out
    scorer = SupportScorer(passages, question)
    for span in sentences(answer):
        text = answer[span.start : span.stop]
        own = text.removeprefix(begun) if span.start == 0 else text
        marks = marks_in(text) if marked else []
        scores = scorer.scores(without_marks(own) if marked else own)
        known = [index for index in marks if 1 <= index <= len(passages)]
        out.unknown_marks.extend(index for index in marks if index not in known)
        cited = known or _supporting(scores)
        for index in cited:
            support = scores[index - 1]
            if support.score > out.quotes.setdefault(index, support).score:
                out.quotes[index] = support
        among = [scores[index - 1] for index in cited] or scores
        best = round(max(support.score for support in among), 4)
        sentence = Attribution(
            start=span.start,
            end=span.stop,
            citations=cited,
            score=best,
            by="marks" if known else "words",
        )
        out.sentences.append(sentence)
    return out


def _supporting(scores: Sequence[Support]) -> list[int]:
    best = max(support.score for support in scores)
    if best < MIN_SUPPORT:
        return []
    enough = [i for i, support in enumerate(scores, 1) if support.score >= AS_GOOD * best]
    return sorted(enough, key=lambda index: -scores[index - 1].score)


async def attributed(result: Answer, plan: AnswerPlan, begun: str) -> Answer:
    """Say which passages support which sentences, as far as the request asks for it; an answer in a
    given form, such as JSON, has none. `begun` are the words with which the prompt has begun it."""
    request = plan.request
    if request.guided is not None or not (request.attribute or request.cite != "none"):
        return result
    passages = [(passage.chunk.title, passage.chunk.text) for passage in plan.passages]
    find = partial(
        attribute,
        result.text,
        passages,
        plan.question,
        begun=begun.strip(),
        marked=request.cite == "inline",
    )
    chars = len(result.text) + sum(len(text) for _, text in passages)
    found = find() if chars <= INLINE_CHARS else await asyncio.to_thread(find)
    text, attributions = result.text, found.sentences
    if request.cite == "marks":
        text, attributions = with_marks(text, attributions)
    citations = []
    for each in result.citations:
        if (best := found.quotes.get(each.index)) is None:
            citations.append(replace(each, used=False))
            continue
        lead = len(plan.passages[each.index - 1].chunk.lead)
        quoted = replace(
            each,
            used=True,
            support=round(best.score, 4),
            quote_start=each.char_start + max(best.quote.start - lead, 0),
            quote_end=each.char_start + max(best.quote.stop - lead, 0),
        )
        citations.append(quoted)
    if found.unknown_marks:
        numbers = ", ".join(f"[{n}]" for n in dict.fromkeys(found.unknown_marks))
        result.warnings.append(f"the answer's marks {numbers} name no passage")
    return replace(result, text=text, attributions=attributions, citations=citations)
