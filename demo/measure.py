"""Measures the exported model and writes demo/accuracy.json: `python -m demo.measure`.

Two kinds of figure: on fresh held-out contexts of two to five documents, with full attention and
with block-masked documents (what reuse without repair sees); and on the demo corpus itself, each
question answered from the three documents MiniLM retrieves for it.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

import torch
from safetensors.torch import load_file

from demo.answering import Answerer
from demo.corpus_files import read_documents, read_questions
from demo.decoder import Decoder, DecoderConfig
from demo.evaluate import accuracy
from demo.recall import retrieved
from demo.samples import Sampler
from demo.vocabulary import build_tokenizer

HERE = Path(__file__).parent
MODEL = HERE / "model"
CONTEXTS = 60
"""Held-out contexts of ten questions for every number of documents."""


def load_plain(folder: Path) -> Decoder:
    """The exported weights in the plain decoder, in fp32."""
    raw = json.loads((folder / "config.json").read_text())
    fields = DecoderConfig.__dataclass_fields__
    decoder = Decoder(DecoderConfig(**{k: v for k, v in raw.items() if k in fields}))
    tensors = load_file(folder / "model.safetensors")
    decoder.load_state_dict({k.removeprefix("model."): v.float() for k, v in tensors.items()})
    return decoder.eval()


def held_out(folder: Path) -> dict[str, dict[str, float]]:
    """Exact match by number of documents, full and block-masked, on the same contexts."""
    model, sampler = load_plain(folder), Sampler(build_tokenizer())
    return {
        f"{documents} documents": {
            "full": accuracy(model, sampler, False, documents, CONTEXTS),
            "block_masked": accuracy(model, sampler, True, documents, CONTEXTS),
            "questions": float(CONTEXTS * 10),
        }
        for documents in (2, 3, 4, 5)
    }


def corpus(folder: Path, top_k: int = 3) -> dict[str, float]:
    """Recall of the retriever and exact match through it, over every demo question."""
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
        "held_out_names": held_out(MODEL),
        "demo_corpus": corpus(MODEL),
        "seed": {"evaluation": 4242, "corpus": 2024},
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
    }
    (HERE / "accuracy.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
