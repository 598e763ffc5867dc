"""all-MiniLM-L6-v2 behind /v1/embeddings, one server per test process, for the services under test.

A gateway that asks it loads neither torch nor transformers, which is most of what its start costs.
The model and its vectors are those that a gateway would compute by itself.
"""

from __future__ import annotations

import json
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kvstitch.retriever import LocalEmbedder

# Settings of a service that embeds in its own process, as it does by default.
IN_PROCESS = {"embedder_url": ""}


@cache
def embedding_settings() -> dict[str, object]:
    """Settings that point to the server; the first call starts it, and it ends with the process."""
    embedder = LocalEmbedder()
    embedder.start()
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with one_at_a_time:
                vectors, tokens = embedder.embed(body["input"])
            rows = [{"index": i, "embedding": v} for i, v in enumerate(vectors.tolist())]
            answer = {"data": rows, "usage": {"prompt_tokens": tokens}}
            content = json.dumps(answer).encode()
            # A service that is killed does not wait for its answer.
            try:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return {
        "embedder": embedder.name,
        "embedder_url": f"http://127.0.0.1:{server.server_address[1]}/v1",
    }
