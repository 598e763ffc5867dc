"""One hostile call: method, path, headers and body, made from the API's own description."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from tests.trials.fuzz.values import NUMBERS, TEXTS, encoded, spoiled, unexpected

GENERATE = "/v1/rag/generate"
# Bodies that are right and cheap; most calls spoil them.
BODIES: dict[str, list[dict[str, Any]]] = {
    GENERATE: [
        {"question": "Which animal does he keep?", "top_k": 1, "max_tokens": 1},
        {"question": "Which river?", "stream": True, "max_tokens": 2, "top_k": 0, "stop": ["x"]},
        {
            "messages": [{"role": "user", "content": "Which town?"}],
            "filter": {"kind": "town", "year": {"gte": 3}},
            "retrieval": "hybrid",
            "fusion": {"method": "pie", "exact_layers": 1},
            "eviction": {"method": "snapkv", "budget": 0.5},
            "max_tokens": 1,
            "temperature": 0.5,
            "seed": 1,
        },
        {
            "question": "What?",
            "inline_documents": [{"title": "T", "text": "The eagle.", "doc_id": "i"}],
            "explain": True,
            "include_text": True,
        },
        {"question": "Who?", "documents": ["person-01"], "max_tokens": 1, "include_tokens": True},
    ],
    "/v1/chat/completions": [
        {
            "model": "kvstitch-demo:pie",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Who?"}]}],
            "max_tokens": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
            "kvstitch": {"top_k": 1, "include_citations": True},
        },
        {"messages": [{"role": "user", "content": "Who?"}], "max_completion_tokens": 1, "n": 1},
    ],
    "/v1/completions": [{"prompt": ["Who?"], "max_tokens": 1, "logprobs": None, "echo": False}],
    "/v1/search": [
        {"query": "Which town?", "top_k": 2, "retrieval": "dense", "min_score": 0.1},
        {"query": "Who?", "documents": ["person-01"], "filter": {"n": 1}, "include_text": False},
    ],
    "/v1/rerank": [{"query": "Who?", "documents": ["a", {"text": "b"}], "top_n": 1}],
    "/v1/embeddings": [
        {"input": ["a goat", "an eagle"], "encoding_format": "base64", "dimensions": 384},
        {"input": "a goat", "model": "all-MiniLM-L6-v2", "user": "u"},
    ],
    "/admin/precompute": [
        {
            "documents": [{"doc_id": "f", "title": "F", "text": "A goat.", "metadata": {"n": 1}}],
            "collection": "fuzz",
        }
    ],
    "/admin/deletions": [{"filter": {"kind": "nothing"}}, {"doc_ids": ["f"], "collection": "fuzz"}],
    "/admin/gate/reset": [{"method": "a3"}, {}],
}
# How often a route is called that costs the worker something, in comparison with 1 for others.
RARE = {GENERATE: 2.0, "/admin/precompute": 0.5, "/v1/chat/completions": 1.5}
SPARED = ("/admin/collections/{collection}",)  # with its own name: it would delete the corpus
METHODS = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND", "X"]
TYPES = [
    "application/json; charset=utf-16",
    "APPLICATION/JSON",
    "text/plain",
    "application/x-ndjson",
    "application/jsonl",
    "multipart/form-data",
    "multipart/form-data; boundary=x",
    "multipart/form-data; boundary=",
    "application/x-www-form-urlencoded",
    "application/pdf",
    "text/html",
    "é/ü",
    "",
]
MULTIPART = (
    b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.%s"\r\n'
    b"Content-Type: %s\r\n\r\n%s\r\n--x--\r\n"
)
STRANGE_HEADERS: list[tuple[str, str]] = [
    ("X-Request-Id", "a\tb"),
    ("X-Request-Id", "x" * 5000),
    ("traceparent", "00-zz-zz-00"),
    ("Authorization", "Bearer"),
    ("Authorization", "Basic \xff\xfe"),
    ("X-Api-Key", "\xff"),
    ("Origin", "http://evil.example"),
    ("Origin", "null"),
    ("Host", "evil.example"),
    ("Host", ""),
    ("Sec-Fetch-Site", "cross-site"),
    ("Accept", "text/event-stream, */*;q=0"),
    ("Accept-Encoding", "br;q=x"),
    ("Content-Encoding", "gzip"),
    ("Range", "bytes=0-1,5-"),
    ("If-None-Match", '"*"'),
    ("Expect", "100-continue"),
    ("Idempotency-Key", "\x7f"),
    ("Upgrade", "websocket"),
    ("Forwarded", "for=_x;host="),
    ("Cookie", "a=b; a=c; =; ;"),
    ("X-Long", "y" * 30_000),
]


@dataclass
class Call:
    """What is sent.

    Attributes:
        headers: in their order, repetitions included, without Content-Length.
        length: what Content-Length says; None: it is left out, -1: the truth.
        chunked: send the body in chunks instead.
    """

    method: str
    target: str
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    length: int | None = -1
    chunked: bool = False

    @property
    def well_framed(self) -> bool:
        """Whether the server can know where the request ends, so that it has to answer."""
        return self.length == -1 or self.chunked or not self.body

    def raw(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        body = self.body
        if self.chunked:
            lines.append("Transfer-Encoding: chunked")
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        elif self.length is not None:
            lines.append(f"Content-Length: {len(body) if self.length == -1 else self.length}")
        return (
            "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1", "replace") + body
        )


class Caller:
    """Draws calls of every route in the description of the API.

    Args:
        description: /openapi.json.
        host: what a well-behaved client writes as Host.
    """

    def __init__(self, description: dict[str, Any], host: str, rng: random.Random) -> None:
        self._rng = rng
        self._host = host
        self._routes = [
            (path, method.upper(), operation)
            for path, methods in description["paths"].items()
            for method, operation in methods.items()
        ]
        self._routes += [("/docs", "GET", {}), ("/openapi.json", "GET", {}), ("/ui/", "GET", {})]
        self._weights = [RARE.get(path, 1.0) for path, _, _ in self._routes]

    def draw(self) -> Call:
        rng = self._rng
        path, method, operation = rng.choices(self._routes, weights=self._weights)[0]
        if rng.random() < 0.05:
            method = rng.choice(METHODS)
        call = Call(method, self._target(path, operation), [("Host", self._host)])
        if path in BODIES and method in ("POST", "PUT", "PATCH"):
            call.headers.append(("Content-Type", "application/json"))
            call.body = self._body(path)
        elif rng.random() < 0.05:
            call.body = encoded(rng, unexpected(rng))
        if rng.random() < 0.2:
            self._distort(call)
        return call

    def _body(self, path: str) -> bytes:
        valid = self._rng.choice(BODIES[path])
        # Right bodies cost the worker most, and are sent by every other test.
        body = valid if self._rng.random() < 0.04 else spoiled(self._rng, valid)
        return encoded(self._rng, body)

    def _target(self, path: str, operation: dict[str, Any]) -> str:
        rng = self._rng

        def fill(name: re.Match[str]) -> str:
            if path in SPARED:
                return quote("fuzz-" + rng.choice(TEXTS)[:3000], safe="", errors="replace")
            known = ["person-01", "f", "kvstitch-demo:pie", "default", "00000000", "a/b"]
            text = rng.choice([*known, *TEXTS])
            return quote(text[:3000], safe="", errors="surrogatepass")

        target = re.sub(r"\{\w+\}", fill, path)
        stated = [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"]
        names = stated * 4 + ["unknown", "limit[]", ""]
        if rng.random() < (0.6 if stated else 0.1):
            values = [str(rng.choice([*TEXTS, *NUMBERS, "true"])) for _ in range(rng.randint(1, 3))]
            pairs = [f"{rng.choice(names)}={quote(text, errors='replace')}" for text in values]
            target += "?" + rng.choice(["&", "&", "&&", ";"]).join(pairs)
        if rng.random() < 0.03:
            target = rng.choice(
                ["/" + target, target + "/", target + "/%2e%2e/", target + "%00", "*", "/\xff\xfe"]
            )
        return target[:60_000]

    def _distort(self, call: Call) -> None:
        """Make the frame of the call strange, not only its content."""
        rng = self._rng
        match rng.randrange(7):
            case 0 | 1:
                call.headers += rng.sample(STRANGE_HEADERS, rng.randint(1, 3))
            case 2:
                call.headers = [h for h in call.headers if h[0] != "Content-Type"]
                call.headers.append(("Content-Type", rng.choice(TYPES)))
            case 3:
                call.headers.append(rng.choice(call.headers))
            case 4:
                call.chunked = True
            case 5 if call.body:
                call.length = rng.choice([None, 0, 1, len(call.body) + 5, 10**15, -5])
            case _:
                kind, what = rng.choice(
                    [(b"pdf", b"%PDF-1.4 1 0 obj <<"), (b"html", b"<p>" * 500), (b"md", b"[" * 500)]
                )
                call.headers = [h for h in call.headers if h[0] != "Content-Type"]
                call.headers.append(("Content-Type", "multipart/form-data; boundary=x"))
                call.body = MULTIPART % (kind, b"text/" + kind, what)
