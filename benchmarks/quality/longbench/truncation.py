"""Long prompts lose the middle of their context, as LongBench's do, but nothing of the templates.

The official code cuts the middle out of the whole prompt, wherever that falls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.quality.sample import TextSample
from service.errors import PromptTooLong

Offsets = Callable[[str], Sequence[tuple[int, int]]]
"""(start, end) in characters of each token of a text, in order, no special tokens among them."""

LIMITS = {"llama-3": 7_500, "llama-3.1": 31_500, "mistral": 31_500}
"""Tokens of a prompt without its answer and chat template, for models of 8k and of 32k and more."""


def truncated(sample: TextSample, offsets: Offsets, limit: int) -> TextSample:
    """`sample` with instruction, context and question of at most `limit` tokens together, each
    encoded by itself: the context keeps as many tokens of its start as of its end.

    Raises PromptTooLong if instruction and question alone take more.
    """
    around = len(offsets(sample.instruction)) + len(offsets(sample.question))
    if around > limit:
        raise PromptTooLong(
            f"{sample.task}, sample {sample.number}: instruction and question alone have {around} "
            f"tokens and {limit} are allowed: raise the limit or leave the sample out",
            field="limit",
        )
    room = limit - around
    spans = offsets(sample.context)
    context, tokens, half = sample.context, len(spans), room // 2
    while tokens > room:
        context = _ends(sample.context, spans, half)
        tokens = len(offsets(context))
        half -= 1  # where the ends meet, the text may take more tokens than they did
    return replace(sample, context=context)


def _ends(text: str, spans: Sequence[tuple[int, int]], half: int) -> str:
    """The text of the first `half` tokens and of the last."""
    return text[: spans[half - 1][1]] + text[spans[-half][0] :] if half else ""
