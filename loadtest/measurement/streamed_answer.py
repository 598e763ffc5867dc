"""One streamed answer as its client saw it: when text came, what the server counted.

All times are readings of one clock of the client's. Knows no HTTP and no route.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

TIERS = ("memory", "ssd", "redis")


@dataclass
class StreamedAnswer:
    """Filled while the stream is read."""

    text_at: list[float] = field(default_factory=list)
    """When each event with text arrived; one may hold more than one token."""
    ended_at: float | None = None
    """When the server said that the answer is complete."""
    error: str | None = None
    """What the server said where an answer went wrong midway."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sources: dict[str, int] = field(default_factory=dict)
    """Prompt tokens by where their KV came from: a tier, `recomputed`, `cold` or `question`."""

    @property
    def first_at(self) -> float | None:
        """The first text; of an answer without any, its end."""
        return self.text_at[0] if self.text_at else self.ended_at

    @property
    def tpot_s(self) -> float | None:
        """(end − first token) / (tokens − 1); None with fewer than two tokens."""
        if self.ended_at is None or self.completion_tokens < 2 or not self.text_at:
            return None
        return (self.ended_at - self.text_at[0]) / (self.completion_tokens - 1)

    @property
    def itl_s(self) -> list[float]:
        """Seconds between one event with text and the next."""
        return [b - a for a, b in zip(self.text_at, self.text_at[1:], strict=False)]

    def count_usage(self, usage: Mapping[str, Any] | None) -> None:
        """OpenAI's `usage` object; absent ones change nothing."""
        if usage:
            self.prompt_tokens = int(usage.get("prompt_tokens", 0))
            self.completion_tokens = int(usage.get("completion_tokens", 0))

    def count_cache(self, cache: Mapping[str, Any] | None) -> None:
        """The service's `cache` object: what each part of the prompt took from where."""
        if cache:
            self.sources = prompt_sources([cache["system"], *cache["documents"]])


def prompt_sources(segments: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Tokens by source, as the service's metric kvstitch_prompt_tokens_total has them."""
    out: dict[str, int] = {}
    for segment in segments:
        tier, tokens = str(segment["tier"]), int(segment["tokens"])
        computed = min(tokens, int(segment["rows_recomputed"])) if tier in TIERS else 0
        source = tier if tier in TIERS else "cold"
        out[source] = out.get(source, 0) + tokens - computed
        if computed:
            out["recomputed"] = out.get("recomputed", 0) + computed
    return out
