"""Traces of answers, and histograms of them, to an OpenTelemetry collector."""

from __future__ import annotations

from typing import Any

from kvstitch.service.plugins import hookimpl


@hookimpl
def tracing(endpoint: str, process: str) -> Any:
    from kvstitch_otel.otel_tracing import OtelTracing

    return OtelTracing(endpoint, process)
