"""Writes the demo corpus and its questions: `python -m demo.make_corpus`.

All names are held out from training. The seed is fixed: running it again gives the same files.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from demo.language.grammar import Document, ask, make_document, make_entity, open_names
from demo.language.kinds import KINDS

SEED = 2024
PER_KIND = 18
QUESTIONS_PER_DOCUMENT = 2
HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
QUESTIONS = HERE / "questions.jsonl"


@dataclass(frozen=True)
class Question:
    """A question, its exact answer, and the one document that holds it."""

    question: str
    answer: str
    doc_id: str


def build(seed: int = SEED) -> tuple[dict[str, Document], list[Question]]:
    """Makes the corpus.

    Names are unique, and first syllables are unique within a kind, so that a reader and a sentence
    embedding can tell the entities apart.

    Returns:
        Documents by id ("ship-03"), and questions about them, both in a fixed order.
    """
    rng = random.Random(seed)
    names = open_names(held_out=True)
    rng.shuffle(names)
    documents: dict[str, Document] = {}
    questions = []
    for kind in KINDS:
        heads: set[str] = set()
        while len(heads) < PER_KIND:
            name = names.pop(next(i for i, n in enumerate(names) if n[:3] not in heads))
            heads.add(name[:3])
            doc_id = f"{kind}-{len(heads):02d}"
            document = make_document(rng, make_entity(rng, kind, name), rng.randint(5, 6))
            documents[doc_id] = document
            for fact in rng.sample(document.facts, QUESTIONS_PER_DOCUMENT):
                questions.append(Question(ask(rng, fact), fact.value, doc_id))
    return documents, questions


def main() -> None:
    documents, questions = build()
    shutil.rmtree(CORPUS, ignore_errors=True)
    CORPUS.mkdir()
    for doc_id, document in documents.items():
        (CORPUS / f"{doc_id}.md").write_text(f"# {document.title}\n\n{document.text}\n")
    with QUESTIONS.open("w") as file:
        for question in questions:
            file.write(json.dumps(vars(question)) + "\n")


if __name__ == "__main__":
    main()
