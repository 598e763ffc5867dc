"""The process that `generate` starts: `generate` behind OpenAI's streamed completions.

    python generate_server.py MODEL_FOLDER PORT THREADS

It answers one request at a time, greedily, with an event per token.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer


class Handler(BaseHTTPRequestHandler):
    """GET /health and POST /v1/completions."""

    model: Any
    tokenizer: Any

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        ids = torch.tensor([body["prompt"]])
        events = Events(self, len(body["prompt"]))
        with torch.inference_mode():
            self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=body["max_tokens"],
                streamer=events,
            )

    def event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Events(BaseStreamer):  # type: ignore[misc]
    """Sends each token of `generate` as an event. Its first call brings the prompt back."""

    def __init__(self, handler: Handler, prompt_tokens: int) -> None:
        self._handler = handler
        self._prompt_tokens = prompt_tokens
        self._ids: list[int] | None = None
        self._sent = ""

    def put(self, value: torch.Tensor) -> None:
        if self._ids is None:
            self._ids = []
            return
        self._ids += value.flatten().tolist()
        text = self._handler.tokenizer.decode(self._ids, skip_special_tokens=True)
        new, self._sent = text.rstrip("\ufffd")[len(self._sent) :], text.rstrip("\ufffd")
        self._handler.event(json.dumps({"choices": [{"index": 0, "text": new}]}))

    def end(self) -> None:
        tokens = len(self._ids or ())
        usage = {"prompt_tokens": self._prompt_tokens, "completion_tokens": tokens}
        self._handler.event(json.dumps({"choices": [], "usage": usage}))
        self._handler.event("[DONE]")


def main(folder: str, port: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    Handler.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    Handler.tokenizer = AutoTokenizer.from_pretrained(folder)
    HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
