"""One OpenTelemetry trace per answer, across both processes; off unless an endpoint is set.

    kvstitch.answer      gateway: arrival to the last token, child of the client's traceparent
      embed retrieve plan …
      kvstitch.generate  worker: request to its end, child of the gateway's span
        queue load prefill evict first_token decode

Stages are measured in any case; their spans are written one after the other when the work is done.
Spans hold counts and names of methods, but no question, document or tenant. The libraries of the
extra `otel` are imported only when tracing starts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from service import __version__
from service.errors import InvalidSetting

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

Attributes = Mapping[str, str | int | float]
NOTHING: Attributes = {}
NO_STAGES: Mapping[str, float] = {}


class Span(Protocol):
    """One piece of work in progress."""

    @property
    def traceparent(self) -> str:
        """W3C Trace Context, for work in another process; empty: there is no trace."""
        ...

    def end(
        self,
        stages: Mapping[str, float] = NO_STAGES,
        attributes: Attributes = NOTHING,
        error: str = "",
    ) -> None:
        """End the span.

        Args:
            stages: Seconds of each stage, in order; each becomes a span of its own.
            attributes: Of this span.
            error: Why the work failed; empty: it did not.
        """
        ...


class Tracing(Protocol):
    def begin(self, name: str, parent: str = "", *, ago_s: float = 0.0) -> Span:
        """Begin a span.

        Args:
            name: Of the span.
            parent: Traceparent of the span that it belongs to; empty: none.
            ago_s: How many seconds ago the work began.
        """
        ...

    def start(self) -> None: ...

    def close(self) -> None:
        """Send the remaining spans."""
        ...


class NoSpan:
    traceparent = ""

    def end(
        self,
        stages: Mapping[str, float] = NO_STAGES,
        attributes: Attributes = NOTHING,
        error: str = "",
    ) -> None:
        pass


class NoTracing:
    """Tracing that is turned off."""

    def begin(self, name: str, parent: str = "", *, ago_s: float = 0.0) -> Span:
        return NoSpan()

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


class OtlpTracing:
    """Sends spans to a collector, by OTLP over HTTP, in the background."""

    def __init__(self, endpoint: str, process: str) -> None:
        """Start nothing yet.

        Args:
            endpoint: Base URL of the collector, e.g. http://collector:4318.
            process: "gateway" or "worker".
        """
        self._endpoint = endpoint.rstrip("/")
        self._process = process
        self._provider: TracerProvider | None = None

    def start(self) -> None:
        """Start sending.

        Raises:
            InvalidSetting: The extra `otel` is not installed.
        """
        if self._provider is not None:
            return
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise InvalidSetting(
                f"otlp_endpoint is set, but {error.name} is not installed: "
                "pip install 'kvstitch[otel]'"
            ) from error
        name = {"service.name": f"kvstitch-{self._process}", "service.version": __version__}
        self._provider = TracerProvider(resource=Resource.create(name))
        exporter = OTLPSpanExporter(endpoint=f"{self._endpoint}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))

    def close(self) -> None:
        if self._provider is not None:
            self._provider.shutdown()
            self._provider = None

    def begin(self, name: str, parent: str = "", *, ago_s: float = 0.0) -> Span:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if self._provider is None:
            return NoSpan()
        tracer = self._provider.get_tracer("kvstitch", __version__)
        context = TraceContextTextMapPropagator().extract({"traceparent": parent})
        began = time.time_ns() - int(1e9 * ago_s)
        return _OtlpSpan(tracer, tracer.start_span(name, context, start_time=began), began)


@dataclass(frozen=True)
class _OtlpSpan:
    tracer: Tracer
    span: OtelSpan
    began_ns: int

    @property
    def traceparent(self) -> str:
        context = self.span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def end(
        self,
        stages: Mapping[str, float] = NO_STAGES,
        attributes: Attributes = NOTHING,
        error: str = "",
    ) -> None:
        from opentelemetry.trace import StatusCode, set_span_in_context

        inside, at = set_span_in_context(self.span), self.began_ns
        for stage, seconds in stages.items():
            part = self.tracer.start_span(stage, inside, start_time=at)
            at += int(1e9 * seconds)
            part.end(at)
        for name, value in attributes.items():
            self.span.set_attribute(name, value)
        if error:
            self.span.set_status(StatusCode.ERROR, error)
        self.span.end()


def tracing(endpoint: str, process: str) -> Tracing:
    """Return Tracing for an endpoint, off if it is empty; not started yet."""
    return OtlpTracing(endpoint, process) if endpoint else NoTracing()
