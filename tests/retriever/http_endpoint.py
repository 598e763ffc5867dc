"""An HTTP server on a real socket whose answers to POSTs a test defines."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Takes the path and the decoded body; gives status and body, JSON unless it is bytes.
Answer = Callable[[str, Any], tuple[int, Any]]


@dataclass
class Endpoint:
    url: str
    bodies: list[Any] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@contextmanager
def endpoint(answer: Answer) -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.bodies.append(body)
            served.keys.append(self.headers["Authorization"])
            status, reply = answer(self.path, body)
            content = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                pass  # the client gave up

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = Endpoint(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
