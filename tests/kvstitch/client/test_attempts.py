"""When a call is repeated, and what comes of it, against a server that fails as a test says."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kvstitch.client import errors
from tests.kvstitch.client.conftest import CLIENTS

METHODS: dict[str, object] = {"fusion": [], "eviction": [], "defaults": {}}
BUSY = {"error": {"message": "busy", "type": "x", "code": "overloaded", "param": None}}
DROP = "drop the connection"
Reply = tuple[int, dict[str, str], Any] | str


class Server:
    """Answers requests one after another with `replies`; the last one again and again."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.headers: list[Any] = []

    def next(self) -> Reply:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@contextmanager
def serving(server: Server) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            server.headers.append(self.headers)
            reply = server.next()
            if isinstance(reply, str):
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, headers, body = reply
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.fixture(params=CLIENTS)
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def connect(url: str, **more: Any) -> Any:
        made.append(request.param(url, **more))
        return made[-1]

    yield connect
    for client in made:
        client.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstitch.client.connection.FIRST_PAUSE_S", 0.05)


GOOD: Reply = (200, {}, METHODS)


@pytest.mark.parametrize("status", [429, 503])
def test_what_the_service_asks_to_repeat_is_repeated_then(connect: Any, status: int) -> None:
    server = Server((status, {"Retry-After": "1"}, BUSY), GOOD)
    with serving(server) as url:
        began = time.monotonic()
        connect(url).methods()
        assert time.monotonic() - began >= 1.0 and len(server.headers) == 2


@pytest.mark.parametrize(
    ("status", "headers", "calls"),
    [(503, {"Retry-After": "0"}, 3), (503, {}, 1), (503, {"Retry-After": "31"}, 1), (500, {}, 1)],
)
def test_what_is_not_repeated_is_raised_with_all_that_was_said(
    connect: Any, status: int, headers: dict[str, str], calls: int
) -> None:
    server = Server((status, {**headers, "X-Request-Id": "r-1"}, BUSY))
    with serving(server) as url, pytest.raises(errors.Unavailable, match="busy") as caught:
        connect(url).methods()
    assert len(server.headers) == calls
    error = caught.value
    assert (error.status, error.code, error.request_id) == (status, "overloaded", "r-1")
    asked = headers.get("Retry-After")
    assert error.retry_after == (None if asked is None else float(asked))


def test_a_broken_connection_is_tried_again_where_that_is_harmless(connect: Any) -> None:
    server = Server(DROP, DROP, GOOD)
    with serving(server) as url:
        connect(url).methods()
        assert len(server.headers) == 3
    cancelled = Server(DROP, GOOD)
    with serving(cancelled) as url, pytest.raises(errors.ConnectionFailed):
        connect(url).cancel_job("one")
    assert len(cancelled.headers) == 1


def test_documents_are_handed_in_again_under_the_same_key(connect: Any) -> None:
    job = {
        **{"job_id": "j", "state": "queued", "chunks": 0, "changes": {}, "errors": []},
        **{"progress": {"done": 0, "failed": 0, "cancelled": 0, "total": 1}},
        **{"created": 0.0, "updated": 0.0},
    }
    server = Server(DROP, (202, {}, job))
    with serving(server) as url:
        assert connect(url).precompute([{"doc_id": "a", "text": "b"}]).job_id == "j"
    first, second = (headers["Idempotency-Key"] for headers in server.headers)
    assert first == second and first


def test_nobody_there_and_nobody_who_answers(connect: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(errors.TimedOut, match="is the service running there"):
            connect(url, timeout_s=0.2).status()
    with pytest.raises(errors.ConnectionFailed, match=url):
        connect(url).status()
    with pytest.raises(errors.ConnectionFailed):
        connect("nowhere").status()


@pytest.mark.parametrize(
    "reply", [(200, {}, b"<html>"), (200, {}, {"other": 1}), (404, {}, b"no"), (302, {}, b"")]
)
def test_something_else_that_answers_is_recognised(connect: Any, reply: Any) -> None:
    with serving(Server(reply)) as url, pytest.raises(errors.UnexpectedResponse, match="kvstitch"):
        connect(url).methods()


def test_a_stream_that_breaks_off_is_no_answer(connect: Any) -> None:
    half = b'event: sources\ndata: {"citations": []}\n\nevent: token\ndata: {"text": "a"}\n\n'
    with serving(Server((200, {}, half))) as url:
        stream = connect(url).stream("x")
        with pytest.raises(errors.UnexpectedResponse, match="broke off"):
            list(stream)
    other = Server((200, {}, b"data: <html>\n"))
    refused = pytest.raises(errors.UnexpectedResponse, match="not as kvstitch")
    with serving(other) as url, refused:
        list(connect(url).stream("x"))


def test_address_and_key_come_from_arguments_or_the_environment(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(GOOD)
    with serving(server) as url:
        monkeypatch.setenv("KVSTITCH_URL", url)
        monkeypatch.setenv("KVSTITCH_API_KEY", "kvs_env")
        connect(None).methods()
        connect(None, api_key="kvs_given").methods()
        monkeypatch.delenv("KVSTITCH_API_KEY")
        connect(url).methods()
    sent = [headers["Authorization"] for headers in server.headers]
    assert sent == ["Bearer kvs_env", "Bearer kvs_given", None]
    with pytest.raises(errors.InvalidRequest, match="api_key"):
        connect(url, api_key="naïve")


def test_a_deadline_is_sent_as_a_header(connect: Any) -> None:
    late = {"error": {"message": "late", "type": "x", "code": "deadline_exceeded", "param": None}}
    server = Server((504, {}, late))
    with serving(server) as url, pytest.raises(errors.DeadlineExceeded):
        connect(url).search("x", deadline_s=1.5)
    assert server.headers[0]["X-Request-Deadline-Ms"] == "1500"
