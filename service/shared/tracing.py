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
from typing import TYPE_CHECKING

from service import __version__
from service.errors import InvalidSetting

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

NO_STAGES: Mapping[str, float] = {}
NO_ATTRIBUTES: Mapping[str, str | int | float] = {}


class Tracing:
    """Sends spans to a collector, by OTLP over HTTP, in the background.

    Args:
        endpoint: Base URL of the collector, e.g. http://collector:4318; empty: nothing is traced.
        process: "gateway" or "worker".
    """

    def __init__(self, endpoint: str, process: str) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._process = process
        self._provider: TracerProvider | None = None

    def start(self) -> None:
        """Start sending.

        Raises:
            InvalidSetting: There is an endpoint, and the extra `otel` is not installed.
        """
        if not self._endpoint or self._provider is not None:
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
        """Send the remaining spans."""
        if self._provider is not None:
            self._provider.shutdown()
            self._provider = None

    def begin(self, name: str, parent: str = "", *, ago_s: float = 0.0) -> Span:
        """Begin a span.

        Args:
            name: Of the span.
            parent: Traceparent of the span that it belongs to; empty: none.
            ago_s: How many seconds ago the work began.
        """
        if self._provider is None:
            return Span()
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        tracer = self._provider.get_tracer("kvstitch", __version__)
        context = TraceContextTextMapPropagator().extract({"traceparent": parent})
        began = time.time_ns() - int(1e9 * ago_s)
        return Span(_Recorded(tracer, tracer.start_span(name, context, start_time=began), began))


@dataclass(frozen=True)
class _Recorded:
    tracer: Tracer
    span: OtelSpan
    began_ns: int


@dataclass(frozen=True)
class Span:
    """One piece of work in progress; nothing is recorded of it where tracing is off."""

    _recorded: _Recorded | None = None

    @property
    def traceparent(self) -> str:
        """W3C Trace Context, for work in another process; empty: there is no trace."""
        if self._recorded is None:
            return ""
        context = self._recorded.span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def end(
        self,
        stages: Mapping[str, float] = NO_STAGES,
        attributes: Mapping[str, str | int | float] = NO_ATTRIBUTES,
        error: str = "",
    ) -> None:
        """End the span.

        Args:
            stages: Seconds of each stage, in order; each becomes a span of its own.
            attributes: Of this span.
            error: Why the work failed; empty: it did not.
        """
        if self._recorded is None:
            return
        from opentelemetry.trace import StatusCode, set_span_in_context

        span, at = self._recorded.span, self._recorded.began_ns
        inside = set_span_in_context(span)
        for stage, seconds in stages.items():
            part = self._recorded.tracer.start_span(stage, inside, start_time=at)
            at += int(1e9 * seconds)
            part.end(at)
        for name, value in attributes.items():
            span.set_attribute(name, value)
        if error:
            span.set_status(StatusCode.ERROR, error)
        span.end()
