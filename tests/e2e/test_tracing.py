"""Tracing: one trace per answer across both processes, sent to a real collector's socket."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.e2e.conftest import Documents, Serve
from tests.e2e.traffic import QUESTION

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

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
    attributes: dict[str, str]
    failed: bool


@dataclass
class Collector:
    url: str
    spans: list[Seen] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def named(self, name: str, trace: str) -> list[Seen]:
        return [span for span in self.spans if span.name == name and span.trace == trace]

    def take(self, body: bytes) -> None:
        request = trace_service.ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            about = {a.key: a.value.string_value for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {a.key: str(a.value) for a in span.attributes}
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
                        )
                    )


@pytest.fixture
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collected.paths.add(self.path)
            collected.take(body)
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
        service.until(
            lambda: (
                bool(collector.named("kvstitch.generate", TRACE))
                and bool(collector.named("kvstitch.answer", TRACE))
                and any(span.failed for span in collector.spans)
            ),
            "the spans do not arrive",
        )
    assert collector.paths == {"/v1/traces"}
    (answer,) = collector.named("kvstitch.answer", TRACE)
    (generate,) = collector.named("kvstitch.generate", TRACE)
    assert (answer.process, answer.parent) == ("kvstitch-gateway", PARENT)
    assert (generate.process, generate.parent) == ("kvstitch-worker", answer.span)
    inside = {
        parent.name: [s.name for s in collector.spans if s.parent == parent.span]
        for parent in (answer, generate)
    }
    assert {"embed", "retrieve", "plan"} <= set(inside["kvstitch.answer"])
    assert {"queue", "prefill", "decode"} <= set(inside["kvstitch.generate"])
    measured = reply.json()
    total_s = measured["timing"]["total_s"]
    assert 0.5 * total_s <= (answer.ended - answer.began) / 1e9 <= total_s + 1
    (prefill,) = (s for s in collector.spans if s.parent == generate.span and s.name == "prefill")
    assert (prefill.ended - prefill.began) / 1e9 == pytest.approx(
        measured["stages"]["prefill"], abs=1e-6
    )
    (failed,) = (span for span in collector.spans if span.failed)
    assert failed.name == "kvstitch.answer" and failed.trace != TRACE
    told = str([span.attributes for span in collector.spans])
    assert QUESTION not in told and twelve[0]["doc_id"] not in told


def test_without_an_endpoint_nothing_of_it_is_loaded() -> None:
    code = (
        "import sys; from service.shared.tracing import Tracing; "
        "import service.gateway.composition, service.worker.server.worker_server; "
        "t = Tracing('', 'gateway'); t.start(); s = t.begin('x'); s.end(); t.close(); "
        "print(repr(s.traceparent), [m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "'' []", done.stderr
