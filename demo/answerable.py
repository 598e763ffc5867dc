"""Marks the questions that full prefill answers from passages of their own documents alone.

    python -m demo.answerable

Every question is asked over its own documents only, with as many passages as there are documents,
best first by the search; the passage that answers it may still be missed, and then the question is
not answerable either. No fusion method takes part. `answerable` is written into questions.jsonl.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console

from demo import scenario
from demo.asking import ingest
from demo.client import Client
from demo.model import fetch
from demo.process import free_port, service
from demo.questions import DemoQuestion, read_demo_questions
from demo.scenario import BASELINE, QUESTIONS, Scenario


def is_answerable(client: Client, chosen: Scenario, question: DemoQuestion) -> bool:
    """Asks one question over its own documents; one that no document answers is not answerable."""
    if not question.documents:
        return False
    answer = client.ask(
        question.question,
        BASELINE.name,
        top_k=len(question.documents),
        documents=list(question.documents),
        **chosen.request,
    )
    return question.is_right(answer.text)


def mark(path: Path, answerable: dict[str, bool]) -> None:
    """Writes `answerable` into a file of questions; all else stays as it is.

    Args:
        path: JSON lines.
        answerable: By question.
    """
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row["answerable"] = answerable[row["question"]]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def main() -> int:
    console = Console()
    chosen = scenario.prose(fetch())
    questions = read_demo_questions(QUESTIONS)
    with tempfile.TemporaryDirectory(prefix="kvstitch-demo-") as scratch:
        data, port = Path(scratch) / "data", free_port()
        data.mkdir()
        with (
            service(data, port, data / "service.log", chosen.model),
            Client(f"http://127.0.0.1:{port}") as client,
        ):
            ingest(console, client, chosen)
            found = {q.question: is_answerable(client, chosen, q) for q in questions}
    mark(QUESTIONS, found)
    asked = Counter((q.split, q.kind) for q in questions)
    right = Counter((q.split, q.kind) for q in questions if found[q.question])
    for group, count in asked.items():
        console.print(*group, f"{right[group]}/{count}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
