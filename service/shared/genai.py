"""OpenTelemetry's semantic conventions for generative AI: names of spans, attributes and metrics.

https://opentelemetry.io/docs/specs/semconv/gen-ai/, as opentelemetry-semantic-conventions 0.66b2
has them; they are not stable yet. What they leave to choice and would hold somebody's words
(messages, queries, documents, the name of a collection) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]
Operation = Literal["chat", "text_completion", "embeddings", "retrieval"]

OPERATION: Final = "gen_ai.operation.name"
MODEL: Final = "gen_ai.request.model"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
ERROR: Final = "error.type"
# Stages of an answer that are operations by themselves.
OF_STAGES: Final[Mapping[str, Operation]] = {"embed": "embeddings", "retrieve": "retrieval"}
_LABELS: Final = (OPERATION, "gen_ai.provider.name", MODEL, "gen_ai.response.model", ERROR)
# Borders as the conventions ask for them, in seconds.
_DURATIONS: Final = tuple(0.01 * 2**power for power in range(14))
_FIRST: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_BETWEEN: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


def of(
    operation: Operation, model: str = "", **more: str | int | float | bool | None
) -> Attributes:
    """Return the attributes of an operation.

    Args:
        operation: What is done.
        model: That does it, as requests name it; "": none does.
        more: Without `gen_ai.`, `__` for each other dot; None leaves one out.
    """
    found: dict[str, str | int | float | bool] = {
        OPERATION: operation,
        "gen_ai.provider.name": "kvstitch",
    }
    if model:
        found[MODEL] = model
    named = {f"gen_ai.{name.replace('__', '.')}": value for name, value in more.items()}
    return {**found, **{name: value for name, value in named.items() if value is not None}}


def span_name(operation: Operation, model: str = "") -> str:
    return f"{operation} {model}".rstrip()


class ServerMetrics:
    """The histograms of a server of models, filled from what its spans say."""

    def __init__(self, meter: Meter) -> None:
        self._duration = meter.create_histogram(
            "gen_ai.server.request.duration", "s", explicit_bucket_boundaries_advisory=_DURATIONS
        )
        self._first = meter.create_histogram(
            "gen_ai.server.time_to_first_token", "s", explicit_bucket_boundaries_advisory=_FIRST
        )
        self._between = meter.create_histogram(
            "gen_ai.server.time_per_output_token", "s", explicit_bucket_boundaries_advisory=_BETWEEN
        )

    def observe(self, attributes: Attributes, seconds: float) -> None:
        """Count a span that has ended, if it is of an operation."""
        if OPERATION not in attributes:
            return
        labels = {name: attributes[name] for name in _LABELS if name in attributes}
        self._duration.record(seconds, labels)
        first, tokens = attributes.get(FIRST_CHUNK), attributes.get(OUTPUT_TOKENS)
        if isinstance(first, float):
            self._first.record(first, labels)
            if isinstance(tokens, int) and tokens > 1:
                self._between.record((seconds - first) / (tokens - 1), labels)
