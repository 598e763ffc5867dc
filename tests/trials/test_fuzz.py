"""A short run with a fixed seed; `python -m tests.trials.fuzz` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.embedding_server import IN_PROCESS
from tests.e2e.models import DEMO
from tests.e2e.service import Service
from tests.trials.fuzz.__main__ import DOCUMENTS, Fuzz
from tests.trials.fuzz.calls import Call
from tests.trials.fuzz.sending import Reply, fault

CALLS = 600


def test_no_call_is_a_server_error(tmp_path: Path) -> None:
    with Service(DEMO, tmp_path / "data", **IN_PROCESS) as service:
        service.ingest(DOCUMENTS)
        fuzz = Fuzz(service, seed=3)
        fuzz.run(CALLS)
        assert fuzz.faults == [], service.log()
    assert sum(fuzz.counts.values()) == CALLS and len(fuzz.counts) > 5, fuzz.counts


@pytest.mark.parametrize(
    ("status", "body", "wrong"),
    [
        (500, b'{"code": "internal_error"}', "an error of the service itself"),
        (503, b'{"code": "overloaded"}', ""),
        (503, b'{"error": {"code": "worker_unavailable"}}', ""),
        (503, b"busy", "a 503 without a reason"),
        (502, b'{"code": "overloaded"}', "a 502 overloaded"),
        (0, b"", "no answer"),
        (422, b'{"code": "invalid_request"}', ""),
    ],
)
def test_what_counts_as_a_fault(status: int, body: bytes, wrong: str) -> None:
    assert fault(Call("GET", "/status"), Reply(status, b"HTTP/1.1", body)) == wrong


def test_a_stream_has_an_end() -> None:
    head, call = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream", Call("POST", "/x")
    assert fault(call, Reply(200, head, b"event: token\ndata: {}\n\n")) == "a stream without end"
    assert fault(call, Reply(200, head, b"event: done\ndata: {}\n\n")) == ""
