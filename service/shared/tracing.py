"""One OpenTelemetry trace per answer, across both processes; off unless an endpoint is set.

    chat MODEL           gateway: arrival to the last token, child of the client's traceparent
      embeddings retrieval plan …
      kvstitch.generate  worker: request to its end, child of the gateway's span
        queue load prefill evict first_token decode

Stages are measured in any case; their spans are written one after the other when the work is done.
Spans hold counts and names of methods, but no question, document or tenant. What the conventions
for generative AI name is called so (`service.shared.genai`), and measured by their histograms,
which go to the same collector. The libraries of the extra `otel` are imported only when tracing
starts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from service import __version__
from service.errors import InvalidSetting, KvstitchError
from service.shared import genai
from service.shared.genai import OF_STAGES, Attributes, ServerMetrics

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

NO_STAGES: Mapping[str, float] = {}
NO_ATTRIBUTES: Attributes = {}


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
        self._meters: MeterProvider | None = None
        self._metrics: ServerMetrics | None = None

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
        resource = Resource.create(name)
        self._provider = TracerProvider(resource=resource)
        exporter = OTLPSpanExporter(endpoint=f"{self._endpoint}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        if self._process == "gateway" and os.environ.get("OTEL_METRICS_EXPORTER") != "none":
            self._start_metrics(resource)

    def _start_metrics(self, resource: Resource) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        exporter = OTLPMetricExporter(endpoint=f"{self._endpoint}/v1/metrics")
        # How often is for OTEL_METRIC_EXPORT_INTERVAL to say.
        self._meters = MeterProvider([PeriodicExportingMetricReader(exporter)], resource)
        self._metrics = ServerMetrics(self._meters.get_meter("kvstitch", __version__))

    def close(self) -> None:
        """Send the remaining spans and the last state of the metrics."""
        if self._provider is not None:
            self._provider.shutdown()
            self._provider = None
        if self._meters is not None:
            self._meters.shutdown()
            self._meters = self._metrics = None

    def begin(
        self, name: str, parent: str = "", *, ago_s: float = 0.0, served: bool = False
    ) -> Span:
        """Begin a span.

        Args:
            name: Of the span.
            parent: Traceparent of the span that it belongs to; empty: none.
            ago_s: How many seconds ago the work began.
            served: Whether it is what a request from outside asks for.
        """
        if self._provider is None:
            return Span()
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        tracer = self._provider.get_tracer("kvstitch", __version__)
        context = TraceContextTextMapPropagator().extract({"traceparent": parent})
        began = time.time_ns() - int(1e9 * ago_s)
        kind = SpanKind.SERVER if served else SpanKind.INTERNAL
        span = tracer.start_span(name, context, kind, start_time=began)
        return Span(_Recorded(tracer, span, began, self._metrics))


@dataclass(frozen=True)
class _Recorded:
    tracer: Tracer
    span: OtelSpan
    began_ns: int
    metrics: ServerMetrics | None


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
        attributes: Attributes = NO_ATTRIBUTES,
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
        tracer = self._recorded.tracer
        for stage, seconds in stages.items():
            operation = OF_STAGES.get(stage)
            told = None if operation is None else genai.of(operation)
            part = tracer.start_span(operation or stage, inside, attributes=told, start_time=at)
            at += int(1e9 * seconds)
            part.end(at)
        if error:
            attributes = {**attributes, genai.ERROR: error}
            span.set_status(StatusCode.ERROR, error)
        span.set_attributes(attributes)
        ended = time.time_ns()
        if self._recorded.metrics is not None:
            self._recorded.metrics.observe(attributes, (ended - self._recorded.began_ns) / 1e9)
        span.end(ended)


def failure(error: BaseException) -> str:
    """Return an error as a span names it: by its code, or its class."""
    return error.code if isinstance(error, KvstitchError) else type(error).__name__
