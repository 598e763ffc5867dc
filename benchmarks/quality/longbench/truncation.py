"""Cuts the middle out of the context of long prompts, as LongBench does, but not out of templates.

The official code cuts the middle out of the whole prompt, templates included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.quality.sample import TextSample
from service.errors import PromptTooLong

Offsets = Callable[[str], Sequence[tuple[int, int]]]
"""Start and end in characters of each token of a text, in order, without special tokens."""

LIMITS = {"llama-3": 7_500, "llama-3.1": 31_500, "mistral": 31_500}
"""Largest prompts in tokens, without answer and chat template: for 8k models, and 32k or more."""


def truncated(sample: TextSample, offsets: Offsets, limit: int) -> TextSample:
    """`sample` with at most `limit` tokens of instruction, context and question together.

    Each of the three is encoded by itself. The context keeps as many tokens of its start as of its
    end.

    Raises:
        PromptTooLong: instruction and question alone exceed the limit.
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
        half -= 1  # where the two ends meet, the text may be encoded to more tokens than before
    return replace(sample, context=context)


def _ends(text: str, spans: Sequence[tuple[int, int]], half: int) -> str:
    """The text of the first `half` tokens and that of the last `half`."""
    return text[: spans[half - 1][1]] + text[spans[-half][0] :] if half else ""
