"""One streamed answer as its client sees it: when text arrived, and what the server counted.

All times are readings of the client's clock, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

TIERS = ("memory", "ssd", "redis", "s3")


@dataclass
class StreamedAnswer:
    """An answer, filled while its stream is read.

    Attributes:
        text_at: when each event with text arrived; an event may hold more than one token.
        ended_at: when the server said that the answer is complete.
        text: the answer so far, if the reader of the stream keeps it.
        error: the server's message if the answer failed midway.
        prompt_tokens: tokens of the prompt, counted by the server.
        completion_tokens: tokens of the answer, counted by the server.
        cached_tokens: prompt tokens that the server says it had; None: it does not say.
        sources: prompt tokens by the source of their KV cache: a tier, `recomputed`, `cold` or
            `question`.
    """

    text_at: list[float] = field(default_factory=list)
    ended_at: float | None = None
    text: str = ""
    error: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    sources: dict[str, int] = field(default_factory=dict)

    @property
    def first_at(self) -> float | None:
        """When the first text arrived; for an answer without text, when it ended."""
        return self.text_at[0] if self.text_at else self.ended_at

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first: (end − first token) / (tokens − 1), or None."""
        if self.ended_at is None or self.completion_tokens < 2 or not self.text_at:
            return None
        return (self.ended_at - self.text_at[0]) / (self.completion_tokens - 1)

    @property
    def itl_s(self) -> list[float]:
        """Seconds between successive events with text (inter-token latency)."""
        return [b - a for a, b in zip(self.text_at, self.text_at[1:], strict=False)]

    def count_usage(self, usage: Mapping[str, Any] | None) -> None:
        """Take the counts of OpenAI's `usage` object; None changes nothing."""
        if usage:
            self.prompt_tokens = int(usage.get("prompt_tokens", 0))
            self.completion_tokens = int(usage.get("completion_tokens", 0))
            if details := usage.get("prompt_tokens_details"):
                self.cached_tokens = details.get("cached_tokens")

    def count_cache(self, cache: Mapping[str, Any] | None) -> None:
        """Take the sources from the service's `cache` object; None changes nothing."""
        if cache:
            self.sources = prompt_sources([cache["system"], *cache["documents"]])


def prompt_sources(segments: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Prompt tokens by source, as in the service's metric kvstitch_prompt_tokens_total."""
    out: dict[str, int] = {}
    for segment in segments:
        tier, tokens = str(segment["tier"]), int(segment["tokens"])
        computed = min(tokens, int(segment["rows_recomputed"])) if tier in TIERS else 0
        source = tier if tier in TIERS else "cold"
        out[source] = out.get(source, 0) + tokens - computed
        if computed:
            out["recomputed"] = out.get("recomputed", 0) + computed
    return out
