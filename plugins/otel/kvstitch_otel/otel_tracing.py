"""Spans and histograms as OpenTelemetry has them, sent by OTLP over HTTP."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kvstitch.service import __version__
from kvstitch.service.errors import InvalidSetting
from kvstitch.service.shared.tracing import (
    MODEL,
    NO_ATTRIBUTES,
    NO_STAGES,
    OPERATION,
    OUTPUT_TOKENS,
    Attributes,
    Operation,
    Span,
    Tracing,
    attributes_of,
)

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

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


class OtelTracing(Tracing):
    """Sends spans to a collector, by OTLP over HTTP, in the background.

    Args:
        endpoint: Base URL of the collector, e.g. http://collector:4318.
        process: "gateway" or "worker".
    """

    def __init__(self, endpoint: str, process: str) -> None:
        self._endpoint = endpoint
        self._process = process
        self._provider: TracerProvider | None = None
        self._meters: MeterProvider | None = None
        self._metrics: ServerMetrics | None = None

    def start(self) -> None:
        """Start sending.

        Raises:
            InvalidSetting: The libraries of OpenTelemetry are not installed.
        """
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
        if self._provider is None:
            return Span()
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        tracer = self._provider.get_tracer("kvstitch", __version__)
        context = TraceContextTextMapPropagator().extract({"traceparent": parent})
        began = time.time_ns() - int(1e9 * ago_s)
        kind = SpanKind.SERVER if served else SpanKind.INTERNAL
        span = tracer.start_span(name, context, kind, start_time=began)
        return OtelSpan(tracer, span, began, self._metrics)


class OtelSpan(Span):
    """One piece of work, which OpenTelemetry records."""

    def __init__(
        self, tracer: trace.Tracer, span: trace.Span, began_ns: int, metrics: ServerMetrics | None
    ) -> None:
        self._tracer, self._span = tracer, span
        self._began_ns, self._metrics = began_ns, metrics
        context = span.get_span_context()
        ids = f"{context.trace_id:032x}-{context.span_id:016x}"
        self.traceparent = f"00-{ids}-{context.trace_flags:02x}"

    def end(
        self,
        stages: Mapping[str, float] = NO_STAGES,
        attributes: Attributes = NO_ATTRIBUTES,
        error: str = "",
    ) -> None:
        from opentelemetry.trace import StatusCode, set_span_in_context

        at, inside = self._began_ns, set_span_in_context(self._span)
        for stage, seconds in stages.items():
            operation = OF_STAGES.get(stage)
            told = None if operation is None else attributes_of(operation)
            name = operation or stage
            part = self._tracer.start_span(name, inside, attributes=told, start_time=at)
            at += int(1e9 * seconds)
            part.end(at)
        if error:
            attributes = {**attributes, ERROR: error}
            self._span.set_status(StatusCode.ERROR, error)
        self._span.set_attributes(attributes)
        ended = time.time_ns()
        if self._metrics is not None:
            self._metrics.observe(attributes, (ended - self._began_ns) / 1e9)
        self._span.end(ended)
