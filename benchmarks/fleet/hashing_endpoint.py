"""An embedder behind HTTP that counts hashed words: deterministic, and almost free of cost.

    with hashing_endpoint() as url: …          KVSTITCH_EMBEDDER_URL=url

For measurements in which embedding is not what is measured, and for tests of processes that an
object cannot be handed to.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.fakes.models import HashingEmbedder

DIM = 32


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    embedder = HashingEmbedder(DIM)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        vectors, tokens = self.embedder.embed(body["input"])
        rows = [
            {"index": index, "embedding": vector} for index, vector in enumerate(vectors.tolist())
        ]
        answer = json.dumps({"data": rows, "usage": {"prompt_tokens": tokens}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@contextmanager
def hashing_endpoint() -> Iterator[str]:
    """The base of its API, http://127.0.0.1:port/v1."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
