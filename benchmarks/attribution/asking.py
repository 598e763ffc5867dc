"""Answers of a served model over passages of which one is known to answer.

demo   the demo's questions; the passages are what the service finds in the demo's documents
nq     Natural Questions; the passage that answers among its nearest, in a seeded order
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import httpx

from benchmarks.quality.tasks import natural_questions
from demo.client import Client
from demo.corpus_files import read_documents
from demo.process import free_port, service
from demo.questions import read_demo_questions
from demo.scenario import PROSE, QUESTIONS
from retriever import LocalEmbedder

Split = Literal["dev", "test"]
Suite = Literal["demo", "nq"]
SEED = 5
NQ_OTHERS = 4
"""Passages beside the one that answers."""
DEMO_KINDS = ("single", "reworded")
MAX_TOKENS = 48


@dataclass(frozen=True)
class SourcePassage:
    title: str
    text: str
    gold: bool


@dataclass(frozen=True)
class Case:
    """One answer.

    Attributes:
        answers: Accepted ones.
        text: What the model answered.
        passages: Of the prompt, in its order.
    """

    suite: Suite
    question: str
    answers: tuple[str, ...]
    text: str
    passages: tuple[SourcePassage, ...]


def holds(text: str, answers: Sequence[str]) -> bool:
    """Whether an accepted answer stands in a text as whole words."""
    return any(re.search(rf"(?<!\w){re.escape(a)}(?!\w)", text, re.IGNORECASE) for a in answers)


@contextmanager
def served(model: Path) -> Iterator[httpx.Client]:
    """The model, served over HTTP with the demo's documents."""
    with tempfile.TemporaryDirectory(prefix="kvstitch-attribution-") as scratch:
        data, port = Path(scratch) / "data", free_port()
        data.mkdir()
        url = f"http://127.0.0.1:{port}"
        with service(data, port, data / "service.log", model), Client(url) as demo:
            for _ in demo.precompute(read_documents(PROSE / "documents")):
                pass
            with httpx.Client(base_url=url, timeout=120) as http:
                yield http


def demo_cases(http: httpx.Client, split: Split, samples: int) -> Iterator[Case]:
    """Those of which the search has found a passage that answers."""
    wanted = "development" if split == "dev" else "test"
    asked = [q for q in read_demo_questions(QUESTIONS) if q.kind in DEMO_KINDS]
    for question in [q for q in asked if q.split == wanted][:samples]:
        answer = _ask(http, question.question)
        passages = tuple(
            SourcePassage(
                cited["title"],
                cited["text"],
                cited["doc_id"] in question.documents and holds(cited["text"], question.answers),
            )
            for cited in answer["citations"]
        )
        if any(passage.gold for passage in passages):
            yield Case("demo", question.question, question.answers, answer["text"], passages)


def nq_cases(http: httpx.Client, split: Split, samples: int) -> Iterator[Case]:
    embedder = LocalEmbedder()
    embedder.start()
    with closing(embedder):
        drawn = list(
            natural_questions.retrieve(
                natural_questions.load(split),
                embedder.embed,
                others=NQ_OTHERS,
                samples=samples,
                seed=SEED,
            )
        )
    for found in drawn:
        inline = [
            {"doc_id": f"p{number}", "title": passage.title, "text": passage.text}
            for number, passage in enumerate(found.passages)
        ]
        answer = _ask(http, found.asked.question, inline_documents=inline)
        # A passage longer than a chunk is cut, and each part is a passage of the prompt.
        passages = tuple(
            SourcePassage(
                cited["title"],
                cited["text"],
                cited["doc_id"] == f"p{found.gold}" and holds(cited["text"], found.asked.answers),
            )
            for cited in answer["citations"]
        )
        if any(passage.gold for passage in passages):
            question, answers = found.asked.question, found.asked.answers
            yield Case("nq", question, answers, answer["text"], passages)


def append(path: Path, case: Case) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(case), ensure_ascii=False) + "\n")


def read(path: Path) -> list[Case]:
    out = []
    for line in path.read_text(encoding="utf-8").splitlines():
        raw = json.loads(line)
        passages = tuple(SourcePassage(**passage) for passage in raw.pop("passages"))
        answers = tuple(raw.pop("answers"))
        out.append(Case(**raw, answers=answers, passages=passages))
    return out


def _ask(http: httpx.Client, question: str, **more: Any) -> dict[str, Any]:
    body = {
        "question": question,
        "max_tokens": MAX_TOKENS,
        "include_text": True,
        "fusion": {"method": "vanilla"},  # the model's own answers
        **more,
    }
    reply = http.post("/v1/rag/generate", json=body)
    reply.raise_for_status()
    answer: dict[str, Any] = reply.json()
    return answer
