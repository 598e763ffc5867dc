"""Real sockets that stream like OpenAI's completions, and a peer that is such a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks.peers.dialects import Completions
from benchmarks.peers.processes import Absent
from benchmarks.peers.servers.peer import About
from loadtest.traffic.routes import CorpusDocument


def events(tokens: int, words: Sequence[str] = (" one", " two")) -> list[Any]:
    """A good stream: a chunk per word, then the usage."""
    usage = {
        "prompt_tokens": tokens,
        "completion_tokens": len(words),
        "prompt_tokens_details": {"cached_tokens": tokens - 1},
    }
    chunks: list[Any] = [{"choices": [{"index": 0, "text": word}]} for word in words]
    return [*chunks, {"choices": [], "usage": usage}, "[DONE]"]


class StreamingServer(ThreadingHTTPServer):
    """Answers every completion with a good stream, or with `answer` if it is given."""

    daemon_threads = True

    def __init__(self, answer: Sequence[Any] | None = None, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.status = status
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: StreamingServer

    def do_GET(self) -> None:
        """The list of models."""
        body = json.dumps({"data": [{"id": "any"}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        self.send_response(self.server.status)
        self.send_header("connection", "close")
        self.end_headers()
        answer = self.server.answer
        for event in events(len(body["prompt"])) if answer is None else answer:
            data = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write(f"data: {data}\n\n".encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def streaming(answer: Sequence[Any] | None = None, status: int = 200) -> Iterator[StreamingServer]:
    with StreamingServer(answer, status) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class StreamingPeer:
    """A peer whose server runs in this process; `missing` says why it cannot start."""

    def __init__(self, name: str, url: str = "", missing: str = "") -> None:
        self.name = name
        self.url = url
        self.dialect = Completions("any")
        self._missing = missing
        self.stored: list[CorpusDocument] = []

    def start(self) -> None:
        if self._missing:
            raise Absent(self._missing)

    def stop(self) -> None:
        pass

    def store(self, documents: Sequence[CorpusDocument]) -> bool:
        self.stored += documents
        return True

    def rest(self) -> None:
        pass

    def cpu_s(self) -> float:
        return 1.0

    def memory_mib(self) -> float:
        return 10.0

    def about(self) -> About:
        return About("1", "none")
