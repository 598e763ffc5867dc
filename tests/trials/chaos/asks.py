"""Greedy questions, each of one route, method and set of documents; and how an answer is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from demo.corpus_files import read_questions
from tests.trials.chaos.documents import Document

MAX_TOKENS = 8
MODEL = "chaos-model"  # the name of its folder
ROUTES = ("/v1/rag/generate", "/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True)
class Ask:
    """One question about the same documents every time."""

    route: str
    method: str
    question: str
    doc_ids: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.route} {self.method} {self.question} {','.join(self.doc_ids)}"

    @property
    def reads_kv(self) -> bool:
        """Whether the method ever uses stored KV."""
        return self.method != "vanilla"

    def body(self, *, stream: bool = False, fresh: bool = False) -> dict[str, Any]:
        """The request; `fresh`: no earlier prompt may be continued."""
        where = {"documents": list(self.doc_ids), "top_k": len(self.doc_ids)}
        where |= {"prefix_cache": False} if fresh else {}
        sampling = {"max_tokens": MAX_TOKENS, "temperature": 0, "stream": stream}
        if self.route == ROUTES[0]:
            fusion = {"method": self.method}
            return {"question": self.question, "fusion": fusion, **where, **sampling}
        extension = {**where, "fusion": {"method": self.method}}
        if self.route == ROUTES[1]:
            messages = [{"role": "user", "content": self.question}]
            return {"model": MODEL, "messages": messages, "kvstitch": extension, **sampling}
        return {"model": MODEL, "prompt": self.question, "kvstitch": extension, **sampling}

    def read(self, reply: dict[str, Any]) -> tuple[str, str]:
        """(cache state, text) of a whole answer, in JSON or as a stream's last event.

        The state has a character per document: 1 cached, 0 computed with the prompt or with one of
        full prefill, p left by an earlier prompt in whatever state, - not in the answer at all.
        """
        own = reply if self.route == ROUTES[0] else reply["kvstitch"]
        tiers = {d["doc_id"]: d["tier"] for d in own["cache"]["documents"]}
        found = {"cold": "0", "pool": "p" if self.reads_kv else "0"}
        state = "".join(
            found.get(tiers[doc_id], "1") if doc_id in tiers else "-" for doc_id in self.doc_ids
        )
        if self.route == ROUTES[0]:
            return state, reply["text"]
        choice = reply["choices"][0]
        return state, choice["message"]["content"] if "message" in choice else choice["text"]


def asks_about(pool: list[Document], methods: list[str], each: int) -> list[Ask]:
    """`each` questions per method, on the routes in turn; the second document is a neighbour."""
    by_document = {q.doc_id: q.question for q in read_questions()}
    asks = []
    for number in range(len(methods) * each):
        first, second = pool[number % len(pool)], pool[(number * 3 + 1) % len(pool)]
        if first == second:
            second = pool[(number + 1) % len(pool)]
        question = by_document.get(first.doc_id, "Which animal is it?")
        route = ROUTES[(number // len(methods) + number) % len(ROUTES)]
        ids = (first.doc_id, second.doc_id)
        asks.append(Ask(route, methods[number % len(methods)], question, ids))
    return asks
