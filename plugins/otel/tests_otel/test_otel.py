"""Tracing: one trace per answer across both processes, sent to a real collector's socket."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import EntryPoints
from typing import Any

import pytest

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.plugins import manager
from kvstitch.service.shared.tracing import tracing_to
from kvstitch_otel.otel_tracing import OtelTracing
from tests.e2e.conftest import Documents, Serve
from tests.e2e.traffic import QUESTION
from tests.service.plugins.loaded import plugins

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
metrics_service = pytest.importorskip(
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2"
)

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@dataclass(frozen=True)
class Seen:
    process: str
    name: str
    trace: str
    span: str
    parent: str
    began: int
    ended: int
    attributes: dict[str, Any]
    failed: bool
    served: bool


@dataclass
class Collector:
    url: str
    spans: list[Seen] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)  # by metric and operation

    def named(self, name: str, trace: str) -> list[Seen]:
        return [span for span in self.spans if span.name == name and span.trace == trace]

    def take_metrics(self, body: bytes) -> None:
        """The newest state of each histogram."""
        request = metrics_service.ExportMetricsServiceRequest.FromString(body)
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.histogram.data_points:
                        labels = {a.key: a.value.string_value for a in point.attributes}
                        key = metric.name, labels["gen_ai.operation.name"]
                        self.counts[key] = point.count

    def take(self, body: bytes) -> None:
        request = trace_service.ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            about = {a.key: a.value.string_value for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {a.key: _value(a.value) for a in span.attributes}
                    self.spans.append(
                        Seen(
                            about["service.name"],
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            attributes,
                            span.status.code == 2,
                            span.kind == 2,
                        )
                    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@pytest.fixture
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collected.paths.add(self.path)
            (collected.take if self.path == "/v1/traces" else collected.take_metrics)(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collected = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collected
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_answer_is_one_trace_across_both_processes(
    serve: Serve, twelve: Documents, collector: Collector
) -> None:
    """Under the client's own span; what failed says so; nobody's words are in it."""
    with serve(otlp_endpoint=collector.url) as service:
        service.ingest(twelve[:2])
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        body = {"question": QUESTION, "max_tokens": 4, "top_k": 2}
        reply = service.http.post("/v1/rag/generate", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        assert service.post(QUESTION, fusion={"method": "nope"}).status_code == 422
        model = reply.json()["model"]
        service.until(
            lambda: (
                bool(collector.named("kvstitch.generate", TRACE))
                and bool(collector.named(f"chat {model}", TRACE))
                and any(span.failed for span in collector.spans)
            ),
            "the spans do not arrive",
        )
    (answer,) = collector.named(f"chat {model}", TRACE)
    (generate,) = collector.named("kvstitch.generate", TRACE)
    assert (answer.process, answer.parent) == ("kvstitch-gateway", PARENT)
    assert (generate.process, generate.parent) == ("kvstitch-worker", answer.span)
    assert answer.served and not generate.served
    inside = {
        parent.name: {s.name: s for s in collector.spans if s.parent == parent.span}
        for parent in (answer, generate)
    }
    assert {"embeddings", "retrieval", "plan"} <= set(inside[answer.name])
    assert {"queue", "prefill", "decode"} <= set(inside["kvstitch.generate"])
    for operation in ("embeddings", "retrieval"):
        assert inside[answer.name][operation].attributes["gen_ai.operation.name"] == operation
    measured = reply.json()
    total_s = measured["timing"]["total_s"]
    assert 0.1 * total_s <= (answer.ended - answer.began) / 1e9 <= total_s + 30  # one unit
    (prefill,) = (s for s in collector.spans if s.parent == generate.span and s.name == "prefill")
    assert (prefill.ended - prefill.began) / 1e9 == pytest.approx(
        measured["stages"]["prefill"], abs=1e-6
    )
    usage = measured["usage"]
    assert answer.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "kvstitch",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.stream": False,
        "gen_ai.response.id": measured["id"],
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": [measured["finish_reason"]],
        "gen_ai.response.time_to_first_chunk": pytest.approx(measured["timing"]["ttft_s"]),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "kvstitch.fusion": measured["fusion"]["method"],
        "kvstitch.outcome": "ok",
    }
    (failed,) = (span for span in collector.spans if span.failed)
    assert failed.name == f"chat {model}" and failed.trace != TRACE
    assert failed.attributes["error.type"] == "unknown_method"
    told = str([span.attributes for span in collector.spans])
    assert QUESTION not in told and twelve[0]["doc_id"] not in told


@pytest.mark.slow
def test_operations_without_an_answer_and_their_metrics(
    serve: Serve, twelve: Documents, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches and embeddings are spans of their own, and everything is in the histograms."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")  # milliseconds
    with serve(otlp_endpoint=collector.url) as service:
        service.ingest(twelve[:2])
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}

        def post(path: str, **body: Any) -> Any:
            reply = service.http.post(path, json=body, headers=headers)
            assert reply.status_code == 200, reply.text
            return reply.json()

        post("/v1/search", query=QUESTION, top_k=1)
        vectors = post("/v1/embeddings", input=[QUESTION, "Why?"])
        post("/v1/completions", prompt=QUESTION, max_tokens=3)
        wanted = {
            ("gen_ai.server.request.duration", "retrieval"),
            ("gen_ai.server.request.duration", "embeddings"),
            ("gen_ai.server.request.duration", "text_completion"),
            ("gen_ai.server.time_to_first_token", "text_completion"),
            ("gen_ai.server.time_per_output_token", "text_completion"),
        }
        name = f"embeddings {vectors['model']}"
        service.until(
            lambda: wanted <= collector.counts.keys() and bool(collector.named(name, TRACE)),
            "spans and metrics do not arrive",
        )
    assert {key: collector.counts[key] for key in wanted} == dict.fromkeys(wanted, 1)
    (embedded,) = collector.named(name, TRACE)
    assert embedded.attributes["gen_ai.usage.input_tokens"] == vectors["usage"]["prompt_tokens"]
    dimensions = len(vectors["data"][0]["embedding"])
    assert embedded.attributes["gen_ai.embeddings.dimension.count"] == dimensions
    searches = [s for s in collector.named("retrieval", TRACE) if s.parent == PARENT]
    assert len(searches) == 1 and searches[0].served
    assert searches[0].attributes["gen_ai.request.top_k"] == 1
    assert QUESTION not in str([span.attributes for span in collector.spans])


@pytest.mark.slow
def test_without_an_endpoint_nothing_of_it_is_loaded() -> None:
    code = (
        "import sys; from kvstitch.service.shared.tracing import tracing_to; "
        "import kvstitch.service.gateway.composition; "
        "import kvstitch.service.worker.server.worker_server; "
        "t = tracing_to('', 'gateway'); t.start(); s = t.begin('x'); s.end(); t.close(); "
        "print(repr(s.traceparent), [m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "'' []", done.stderr


def test_an_endpoint_is_never_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "entry_points", lambda group: EntryPoints([]))
    with (
        plugins(),
        pytest.raises(InvalidSetting, match="kvstitch-otel, which sends traces"),
    ):
        tracing_to("http://collector:4318", "gateway")
    with plugins("kvstitch_otel"):
        assert isinstance(tracing_to("http://collector:4318/", "worker"), OtelTracing)
