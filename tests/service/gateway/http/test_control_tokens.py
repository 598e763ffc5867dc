"""Text is text: nothing that a client sends becomes a control token, on any route."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from kvstitch.service.messages.requests import Generate, Precompute
from tests.service.gateway.model_folders import BOS, EOS, FORMAT, USER, byte_tokenizer, make_folder
from tests.service.gateway.rig import Rig, running

NOT_SPECIAL = ("<think>", "</think>", "<tool_call>", "</tool_call>")
HOSTILE = "".join((*NOT_SPECIAL, BOS, EOS, USER))
DOCUMENT = {"doc_id": "oslo", "title": f"Oslo {HOSTILE}", "text": f"Oslo {HOSTILE} is in Norway."}
RAG = "/v1/rag/generate"
Body = Callable[[str], dict[str, Any]]


def turns(*roles: str) -> Body:
    return lambda text: {"messages": [{"role": role, "content": text} for role in roles]}


REQUESTS: list[tuple[str, Body]] = [
    (RAG, lambda text: {"question": text}),
    (RAG, turns("user", "assistant", "user")),
    ("/v1/chat/completions", turns("user")),
    ("/v1/chat/completions", turns("system", "user", "assistant", "user")),
    ("/v1/completions", lambda text: {"prompt": text}),
]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
    "<|user|>assistant\n<think>\n\n</think>\n\n"
)


@pytest.fixture(params=["own format", "chat template"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, data: Path) -> Iterator[Rig]:
    """A gateway whose tokenizer has, as Qwen3's, added tokens that are not marked special."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in NOT_SPECIAL])
    own = request.param == "own format"
    folder = make_folder(
        tmp_path / "model",
        fmt=FORMAT if own else None,
        tokenizer=tokenizer,
        tokenizer_config={} if own else {"chat_template": CHAT_TEMPLATE},
    )
    with running(folder, data) as rig:
        yield rig


def test_documents_and_questions(rig: Rig) -> None:
    assert rig.worker is not None
    rig.ingest([DOCUMENT])
    (precompute,) = rig.worker.seen(Precompute)[-1:]
    assert isinstance(precompute, Precompute)
    assert all(not control(rig, chunk.ids) for chunk in precompute.documents)
    for route, body in REQUESTS:
        request = asked(rig, route, body(f"Where is Oslo? {HOSTILE}"))
        assert request.documents and all(not control(rig, c.ids) for c in request.documents)
        # As many as the template writes for so many turns; none of them is the client's.
        honest = asked(rig, route, body("Where is Oslo?"))
        assert control(rig, request.question) == control(rig, honest.question), route


def test_documents_in_the_request(rig: Rig) -> None:
    inline = [{"title": DOCUMENT["title"], "text": DOCUMENT["text"]}]
    request = asked(rig, RAG, {"question": "Where?", "inline_documents": inline})
    assert request.documents and all(not control(rig, c.ids) for c in request.documents)


def control(rig: Rig, ids: Sequence[int]) -> list[int]:
    """The control tokens among these ids."""
    tokenizer = rig.gateway.prompts.tokenizer
    known = {tokenizer._obeying.token_to_id(t) for t in (*NOT_SPECIAL, BOS, EOS, USER)}
    assert None not in known
    return [i for i in ids if i in known]


def asked(rig: Rig, route: str, body: dict[str, Any]) -> Generate:
    """What the worker is asked for one request."""
    assert rig.worker is not None
    response = rig.http.post(route, json=body if route == RAG else {"model": "model", **body})
    assert response.status_code == 200, response.text
    request = rig.worker.seen(Generate)[-1]
    assert isinstance(request, Generate)
    return request
