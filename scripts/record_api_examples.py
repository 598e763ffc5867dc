"""Records the examples of the API's description from a running service:

    KVSTITCH_AUDIT=true KVSTITCH_GATE_SAMPLE=1 KVSTITCH_RERANKER_URL=… \
        kvstitch serve --port 8123 --data-dir $(mktemp -d) &
    python scripts/record_api_examples.py http://127.0.0.1:8123

The requests are below, in an order that makes sense; the answers are what the service said. Run it
again when a route changes (a test says so); the data folder must be new, and any reranker will do.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx

FILE = Path(__file__).parents[1] / "service" / "gateway" / "http" / "openapi_examples.json"
JSON = "application/json"
WHO, WHICH = "Which animal does Quentin Bruvik keep?", "What is the symbol of Old Zanska?"
QUENTIN = {
    "doc_id": "person-01",
    "title": "Quentin Bruvik",
    "text": "Quentin Bruvik keeps a goat. The coat of Quentin Bruvik is purple.",
    "metadata": {"kind": "person"},
}
TOWN = {
    "doc_id": "town-03",
    "title": "Old Zanska",
    "text": "The symbol of Old Zanska is the eagle. Old Zanska lies on the river Nile.",
    "metadata": {"kind": "town"},
}
RAG: dict[str, Any] = {
    "question": {"question": WHO, "top_k": 2, "fusion": {"method": "a3", "ratio": 0.15}},
    "stream": {"question": WHO, "stream": True},
    "messages": {
        "messages": [
            {"role": "system", "content": "Answer in one word."},
            {"role": "user", "content": WHO},
        ],
        "retrieval": "hybrid",
        "filter": {"kind": "person"},
    },
    "inline": {
        "question": WHICH,
        "inline_documents": [{"title": TOWN["title"], "text": TOWN["text"]}],
        "include_text": True,
    },
    "explain": {"question": WHO, "explain": True},
}
CHAT: dict[str, Any] = {
    "plain": {
        "model": "kvstitch-demo",
        "messages": [{"role": "user", "content": WHO}],
        "max_tokens": 16,
    },
    "extension": {
        "model": "kvstitch-demo:pie",
        "messages": [{"role": "user", "content": WHICH}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "kvstitch": {"collection": "default", "top_k": 1, "include_text": True},
    },
}
RESPONSES: dict[str, Any] = {
    "text": {"model": "kvstitch-demo", "input": WHO, "instructions": "Answer in one word."},
    "stream": {"model": "kvstitch-demo", "input": WHO, "stream": True},
    "tools": {
        "model": "kvstitch-demo",
        "input": [{"role": "user", "content": WHO}],
        "tools": [
            {
                "type": "function",
                "name": "look_up",
                "description": "Looks a person up.",
                "parameters": {"type": "object", "properties": {"name": {"type": "string"}}},
            }
        ],
    },
}
TEXT: dict[str, Any] = {"plain": {"model": "kvstitch-demo", "prompt": WHO, "max_tokens": 16}}
SEARCH: dict[str, Any] = {
    "by meaning": {"query": WHO, "top_k": 2, "retrieval": "dense", "min_score": 0.3},
    "in some documents": {"query": WHO, "filter": {"kind": "person"}, "include_text": False},
}
RERANK = {
    "texts": {"query": WHICH, "documents": [QUENTIN["text"], TOWN["text"]], "top_n": 1},
    "objects": {
        "query": WHICH,
        "documents": [{"text": QUENTIN["text"]}, {"text": TOWN["text"]}],
        "return_documents": True,
    },
}
EMBEDDINGS = {
    "numbers": {"input": [WHO, WHICH], "model": "all-MiniLM-L6-v2"},
    "base64": {"input": WHO, "encoding_format": "base64"},
}
DOCUMENTS = {"documents": {"documents": [QUENTIN, TOWN]}}
MCP = {
    "a tool": {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "search",
            "arguments": {"query": WHO, "top_k": 1},
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    }
}
MCP_HEADERS = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "search",
}
DELETION = {"by filter": {"filter": {"kind": "town"}}}
RENAME = {"rename": {"doc_id": "town-03", "new_id": "old-zanska"}}


class Recorder:
    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)
        self.examples: dict[str, dict[str, Any]] = {}

    def __call__(
        self,
        method: str,
        route: str,
        path: str = "",
        requests: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """Ask with the first of `requests`; the others must be answered too."""
        first: Any = None
        for body in list((requests or {"": None}).values()):
            answer = self.http.request(method, path or route, json=body, headers=headers)
            assert answer.status_code < 300, (method, route, answer.text)
            if first is None:
                first = answer
        media = first.headers.get("content-type", "")
        is_json = media.partition("; charset")[0] == JSON and bool(first.content)
        reply = first.json() if is_json else first.text[:400]
        self.examples[f"{method} {route}"] = {
            "requests": {JSON: requests} if requests else {},
            "response": {JSON if is_json else media: reply} if first.content else {},
        }
        return reply


def main(url: str) -> None:
    record = Recorder(url)
    job = record("POST", "/admin/precompute", "/admin/precompute?source=towns", requests=DOCUMENTS)[
        "job_id"
    ]
    while record("GET", "/admin/jobs/{job_id}", f"/admin/jobs/{job}")["state"] != "succeeded":
        time.sleep(0.2)
    record("GET", "/admin/jobs")
    many = [{**TOWN, "doc_id": f"town-{number}"} for number in range(1000)]
    long = {"collection": "archive", "documents": many}  # long enough to be cancelled
    cancelled = record.http.post("/admin/precompute", json=long).json()["job_id"]
    record("DELETE", "/admin/jobs/{job_id}", f"/admin/jobs/{cancelled}")
    record.http.delete("/admin/collections/archive").raise_for_status()
    record("POST", "/v1/rag/generate", requests=RAG)
    record("POST", "/v1/chat/completions", requests=CHAT)
    record("POST", "/v1/completions", requests=TEXT)
    record("POST", "/v1/responses", requests=RESPONSES)
    record("POST", "/v1/search", requests=SEARCH)
    record("POST", "/v1/rerank", requests=RERANK)
    vectors = record("POST", "/v1/embeddings", requests=EMBEDDINGS)
    for one in vectors["data"]:
        one["embedding"] = one["embedding"][:4]  # enough to see what it is
    record("POST", "/mcp", requests=MCP, headers=MCP_HEADERS)
    record("GET", "/v1/models")
    record("GET", "/v1/models/{model_id}", "/v1/models/kvstitch-demo:pie")
    record("GET", "/v1/methods")
    record("GET", "/admin/documents")
    record("GET", "/admin/documents/{doc_id}", "/admin/documents/person-01")
    record("GET", "/admin/documents/{doc_id}/text", "/admin/documents/person-01/text")
    record("PUT", "/admin/pins/{doc_id}", "/admin/pins/person-01")
    record("DELETE", "/admin/pins/{doc_id}", "/admin/pins/person-01")
    record("GET", "/admin/collections")
    record("GET", "/admin/sources/{source}", "/admin/sources/towns")
    record("POST", "/admin/renames", requests=RENAME)
    receipt = record("POST", "/admin/deletions", requests=DELETION)["receipt_id"]
    record("GET", "/admin/receipts/{receipt_id}", f"/admin/receipts/{receipt}")
    record("DELETE", "/admin/documents/{doc_id}", "/admin/documents/person-01")
    record("DELETE", "/admin/collections/{collection}", "/admin/collections/default")
    record("GET", "/admin/gate")
    record("GET", "/admin/audit", "/admin/audit?after=1&limit=2")
    record("POST", "/admin/gate/reset", requests={"one": {"method": "a3"}, "all": {}})
    for path in ("/health/live", "/health/ready", "/status", "/metrics"):
        record("GET", path)
    FILE.write_text(json.dumps(record.examples, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(record.examples)} examples in {FILE}")


if __name__ == "__main__":
    main(sys.argv[1])
