"""What a run of the demo serves, ingests and asks: with a real language model, or the small one."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.corpus_files import CorpusDocument, Question, read_documents, read_questions
from demo.questions import DemoQuestion, Kind, Split, read_demo_questions

PROSE = Path(__file__).parent / "prose"
QUESTIONS = PROSE / "questions.jsonl"
SEED = 7
NUM_QUESTIONS = 50
"""Asked unless the user says otherwise: two minutes on two cores with the real model."""


@dataclass(frozen=True)
class Method:
    """A fusion method, and the parameters that it is asked with."""

    name: str
    parameters: tuple[tuple[str, float], ...] = ()

    @property
    def label(self) -> str:
        ratio = dict(self.parameters).get("ratio")
        return self.name if ratio is None else f"{self.name} {ratio:g}"

    @property
    def fusion(self) -> dict[str, str | float]:
        """As requests name it."""
        return {"method": self.name, **dict(self.parameters)}


BASELINE = Method("vanilla")
"""Full prefill, with which the other methods are compared."""

PROSE_METHOD = Method("question_scout", (("ratio", 0.4),))
"""What the real model's answers are shown with. On the development half four of five answers are
full prefill's; at 0.15, the service's default, half of them are (docs/console.md)."""


@dataclass(frozen=True)
class Scenario:
    """One run of the demo.

    Attributes:
        model_title: For people.
        model: Folder that is served; none: the model inside the package.
        compared: The method whose answers are held against full prefill's.
        others: Methods that are shown beside it.
        top_k: Passages per answer.
        stop: What ends an answer, besides the model's own end token.
        retrieval: How they are searched.
        min_right: Share of the questions that full prefill must have right.
        max_difference: By how much the share of `compared` may lie away from it.
        shares: Of each kind among a number of questions. Other kinds, and questions that are not
            answerable, are asked with all only.
    """

    model_title: str
    model: Path | None
    documents: list[CorpusDocument]
    questions: list[DemoQuestion]
    compared: Method
    others: tuple[Method, ...]
    top_k: int
    max_tokens: int
    stop: tuple[str, ...]
    retrieval: str
    min_right: float
    max_difference: float
    shares: dict[Kind, float]

    @property
    def request(self) -> dict[str, Any]:
        """The fields of every request besides question, method and top_k."""
        return {
            "max_tokens": self.max_tokens,
            "stop": list(self.stop),
            "retrieval": self.retrieval,
        }

    @property
    def methods(self) -> tuple[Method, ...]:
        return (BASELINE, *self.others, self.compared)

    def draw(self, count: int | None) -> tuple[DemoQuestion, list[DemoQuestion]]:
        """Draws questions with a fixed seed.

        Args:
            count: How many; None: all.

        Returns:
            One to warm up with, and `count` others.
        """
        if count is None:
            return self.questions[0], self.questions
        rng = random.Random(SEED)
        drawn: list[DemoQuestion] = []
        for kind, share in self.shares.items():
            pool = [q for q in self.questions if q.kind == kind and q.answerable]
            wanted = round(count * share) + (not drawn)  # one more, to warm up with
            drawn += rng.sample(pool, min(wanted, len(pool)))
        return drawn[0], drawn[1:]


def small() -> Scenario:
    """The model inside the package, with the language that it was trained on."""
    return Scenario(
        model_title="the small demo model",
        model=None,
        documents=read_documents(),
        questions=[_as_demo_question(q) for q in read_questions()],
        compared=Method("a3", (("ratio", 0.15),)),
        others=(Method("pie"),),
        top_k=3,
        max_tokens=16,
        stop=(),
        retrieval="dense",
        min_right=0.8,
        max_difference=0.05,
        shares={"single": 1.0},
    )


def prose(folder: Path, split: Split = "test") -> Scenario:
    """A real language model in `folder`, with documents in ordinary English."""
    everything = read_demo_questions(QUESTIONS)
    return Scenario(
        model_title="SmolLM2-135M-Instruct",
        model=folder,
        documents=read_documents(PROSE / "documents"),
        questions=[q for q in everything if q.split == split],
        compared=PROSE_METHOD,
        others=(Method("question_scout", (("ratio", 0.15),)),),
        top_k=3,
        max_tokens=48,
        stop=(". ", ", ", "\n"),  # one clause: behind it so small a model makes things up
        retrieval="hybrid",
        min_right=0.65,
        max_difference=0.08,
        shares={"single": 0.8, "reworded": 0.15, "comparison": 0.05},
    )


def _as_demo_question(question: Question) -> DemoQuestion:
    return DemoQuestion(question.question, (question.answer,), (question.doc_id,))
