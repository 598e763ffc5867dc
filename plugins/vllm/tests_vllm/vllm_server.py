"""A server that speaks vLLM's routes and decodes with transformers from the KV that is handed over.

What it says has the form of `recorded.json`, answers of vLLM 0.32.0 to the same requests.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from kvstitch_vllm.segment import hash_of, read
from kvstitch_vllm.weights import weights_of
from tests.ports import free_port

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())
Likely = list[tuple[float, int]]


@dataclass
class Vllm:
    """The server, and how it behaves; `asked` and `loaded` by completion."""

    folder: Path
    shared: Path
    weights: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)  # tokens of the prompt
    left: int = 0  # completions whose client was gone before their end
    pause_s: float = 0.0  # before every token but the first
    dies_after: int | None = None  # tokens, by breaking the connection
    refuses: dict[str, Any] | None = None  # what it answers with status 400
    loses: bool = False  # what is handed over
    spoils: bool = False  # what is handed over, by loading noise
    api_key: str = ""
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        self._one = threading.Lock()
        handler = type("Handler", (_Handler,), {"vllm": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def authorization(self) -> str | None:
        return f"Bearer {self.api_key}" if self.api_key else None

    def segments(self) -> list[Path]:
        return sorted(self.shared.glob("*/*"))

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @torch.inference_mode()
    def tokens(self, body: dict[str, Any]) -> Iterator[tuple[int, Likely]]:
        """Yield greedy tokens, each with the likeliest ones."""
        ids, cache, done = body["prompt"], DynamicCache(), 0
        if (handed := body.get("kv_transfer_params")) and not self.loses:
            segment = read(str(self.shared), handed["kvstitch"]["place"])
            said = segment.metadata()
            assert said["prompt"] == hash_of(ids) and said["weights"] == self.weights
            done = int(said["tokens"]) - 1
            for number in range(len(segment.keys())):
                layer = segment.get_tensor(str(number))[:, :, :done]
                k, v = (3 * torch.randn_like(layer) if self.spoils else layer.clone()).unbind()
                cache.update(k[None], v[None], number)
        self.loaded.append(done)
        given = torch.tensor([ids[done:]])
        for _ in range(body["max_tokens"]):
            with self._one:
                logits = self._model(given, past_key_values=cache, use_cache=True).logits[0, -1]
            best = torch.log_softmax(logits, -1).topk(20)
            likely = list(zip(best.values.tolist(), best.indices.tolist(), strict=True))
            yield likely[0][1], likely
            given = torch.tensor([[likely[0][1]]])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    vllm: Vllm

    def do_GET(self) -> None:
        assert self.path == "/v1/models"
        if self.headers["Authorization"] != self.vllm.authorization:
            self._json(401, {"error": "Unauthorized"})
            return
        self._json(200, RECORDED["models"])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = (body.get("kv_transfer_params") or {}).get("kvstitch", {})
        if "check" in asked:
            same = asked["check"] == self.vllm.weights
            said = {"kvstitch": {"same_weights": same, "dtype": "float32"}}
            self._json(200, {**RECORDED["check"], "kv_transfer_params": said})
            return
        self.vllm.asked.append(body)
        if self.vllm.refuses is not None:
            self._json(400, self.vllm.refuses)
            return
        try:
            self._stream(self.vllm, body)
        except (BrokenPipeError, ConnectionResetError):
            self.vllm.left += 1
            self.close_connection = True

    def _stream(self, vllm: Vllm, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for made, (token, likely) in enumerate(vllm.tokens(body)):
            time.sleep(vllm.pause_s if made else 0)
            if made == vllm.dies_after:
                self.close_connection = True
                return
            chunk = copy.deepcopy(RECORDED["token"])
            (choice,) = chunk["choices"]
            choice["token_ids"] = [token]
            last = "length" if made + 1 == body["max_tokens"] else None
            choice["finish_reason"] = "stop" if token in body["stop_token_ids"] else last
            choice["logprobs"] = None if body["logprobs"] is None else {
                "text_offset": [0], "tokens": [f"token_id:{token}"],
                "token_logprobs": [likely[0][0]],
                "top_logprobs": [{f"token_id:{i}": p for p, i in likely[: body["logprobs"]]}],
            }  # fmt: skip
            self._chunk(json.dumps(chunk))
            if choice["finish_reason"]:
                break
        usage = copy.deepcopy(RECORDED["usage"])
        usage["usage"]["prompt_tokens_details"]["cached_tokens"] = vllm.loaded[-1]
        self._chunk(json.dumps(usage))
        self._chunk("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _json(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


def started(folder: Path, shared: Path) -> Vllm:
    """A running server of this model that is handed KV in this folder."""
    return Vllm(folder, shared, weights_of(folder))
