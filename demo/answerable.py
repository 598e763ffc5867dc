"""Marks the questions that full prefill of SmolLM2 answers, asked as the demo asks them.

    python -m demo.answerable [--model FILE]

No other method takes part. `answerable` is written into demo/world/questions.jsonl; the demo draws
its ten questions among these.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from demo.client import Client
from demo.model import MODEL, fetch
from demo.process import free_port, service
from demo.questions import read_demo_questions
from demo.scenario import FULL, QUESTIONS, SERVED, ask, documents


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    model = fetch(parser.parse_args().model)
    questions = read_demo_questions(QUESTIONS)
    with tempfile.TemporaryDirectory(prefix="kvstitch-demo-") as scratch:
        data, port = Path(scratch) / "data", free_port()
        data.mkdir()
        with (
            service(data, port, data / "service.log", model, SERVED),
            Client(f"http://127.0.0.1:{port}") as client,
        ):
            for _ in client.precompute(documents()):
                pass
            client.wait_complete()
            found = {q.question: q.is_right(ask(client, q.question, FULL).text) for q in questions}
    rows = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    marked = [row | {"answerable": found[row["question"]]} for row in rows]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in marked]
    QUESTIONS.write_text("".join(lines), encoding="utf-8")
    asked = Counter(question.kind for question in questions)
    right = Counter(question.kind for question in questions if found[question.question])
    print(", ".join(f"{kind} {right[kind]}/{count}" for kind, count in asked.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
