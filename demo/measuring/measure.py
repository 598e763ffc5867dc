"""Measures the exported model and writes accuracy.json: `python -m demo.measuring.measure`.

Two kinds of figure: on new held-out samples of every task, with full attention and with chunks that
see less; and on the demo corpus, each question answered from the three documents that MiniLM
retrieves for it.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

import torch

from demo.corpus_files import read_documents, read_questions
from demo.make_corpus import SEED
from demo.measuring.answering import Answerer
from demo.measuring.recall import retrieved
from demo.training.evaluate_tasks import EVALUATION_SEED, evaluate
from demo.training.load import load_plain
from demo.training.rows import TASK_CHUNK_TOKENS

HERE = Path(__file__).parent
MODEL = HERE.parents[1] / "service" / "demo_model"
SAMPLES = 200
"""Held-out stories of every task, one question each."""


def corpus(folder: Path, top_k: int = 3) -> dict[str, float]:
    """Recall of the retriever, and exact match of the answers, over all questions."""
    documents = {d.doc_id: d for d in read_documents()}
    questions, hits = read_questions(), retrieved(top_k)
    answerer = Answerer(folder)
    right = found = 0
    for question, ids in zip(questions, hits, strict=True):
        found += question.doc_id in ids
        answer = answerer.answer([documents[i] for i in ids], question.question)
        right += answer == question.answer
    total = len(questions)
    return {"questions": total, "recall_at_3": found / total, "exact_match_full": right / total}


def main() -> None:
    report = {
        "tasks": evaluate(load_plain(MODEL), SAMPLES),
        "samples_per_task": SAMPLES,
        "chunk_tokens": TASK_CHUNK_TOKENS,
        "demo_corpus": corpus(MODEL),
        "seed": {"evaluation": EVALUATION_SEED, "corpus": SEED},
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
    }
    (HERE / "accuracy.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
