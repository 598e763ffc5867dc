"""One OpenTelemetry trace per answer, across both processes; off unless an endpoint is set.

    chat MODEL           gateway: arrival to the last token, child of the client's traceparent
      embeddings retrieval plan …
      kvstitch.generate  worker: request to its end, child of the gateway's span
        queue load prefill evict first_token decode

Stages are measured in any case; their spans are written one after the other when the work is done.
Names of spans and attributes are those of OpenTelemetry's conventions for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/, opentelemetry-semantic-conventions 0.66b2; not
stable yet); what would hold somebody's words (messages, queries, documents, the name of a
collection) is left out. A plugin writes and sends them.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from kvstitch.service.errors import InvalidSetting, KvstitchError
from kvstitch.service.plugins import hooks

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]
NO_ATTRIBUTES: Attributes = {}
NO_STAGES: Mapping[str, float] = {}
Operation = Literal["chat", "text_completion", "embeddings", "retrieval"]

OPERATION: Final = "gen_ai.operation.name"
MODEL: Final = "gen_ai.request.model"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"


def attributes_of(
    operation: Operation, model: str = "", **more: str | int | float | bool | None
) -> Attributes:
    """Return the attributes of an operation; `more` without `gen_ai.`, with `__` for other dots."""
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


class Span:
    """One piece of work in progress; of this one nothing is recorded."""

    traceparent: str = ""
    """W3C Trace Context, for work in another process; empty: there is no trace."""

    def end(
        self,
        stages: Mapping[str, float] = NO_STAGES,
        attributes: Attributes = NO_ATTRIBUTES,
        error: str = "",
    ) -> None:
        """End the span; `stages`, in order, become spans of their own; `error`: why it failed."""


class Tracing:
    """Begins the spans of a process, and sends them in the background; this one sends nothing."""

    def start(self) -> None:
        """Start sending."""

    def close(self) -> None:
        """Send what remains."""

    def begin(
        self, name: str, parent: str = "", *, ago_s: float = 0.0, served: bool = False
    ) -> Span:
        """Begin a span, of work that began `ago_s` ago.

        Args:
            parent: Traceparent of the span that it belongs to; empty: none.
            served: Whether it is what a request from outside asks for.
        """
        return Span()


def tracing_to(endpoint: str, process: Literal["gateway", "worker"]) -> Tracing:
    """Return what sends spans to the collector at this URL; empty: they are sent nowhere. Raises
    InvalidSetting: no plugin sends them."""
    if not endpoint:
        return Tracing()
    found: Tracing | None = hooks().tracing(endpoint=endpoint.rstrip("/"), process=process)
    if found is None:
        raise InvalidSetting(
            "otlp_endpoint (KVSTITCH_OTLP_ENDPOINT) is set, and kvstitch-otel, which sends traces, "
            "is not installed: install it, or unset otlp_endpoint"
        )
    return found


def failure(error: BaseException) -> str:
    """Return an error as a span names it: by its code, or its class."""
    return error.code if isinstance(error, KvstitchError) else type(error).__name__
