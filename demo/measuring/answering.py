"""Answers a question from documents with plain transformers: the reference for the service.

Builds the prompt as the service does, segment by segment, prefills it in full and decodes
greedily. Slow and simple; used by the tests and for the accuracy in the model card.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from demo.corpus_files import CorpusDocument
from demo.language.vocabulary import BOS_ID, DOCUMENT, EOS_ID, QUESTION, SYSTEM

MAX_TOKENS = 16


class Answerer:
    """The exported model, on the CPU."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def prompt(self, documents: list[CorpusDocument], question: str) -> list[int]:
        """Token ids of the system prompt, the documents in this order, and the question."""
        ids = [BOS_ID, *self._encode(SYSTEM)]
        for document in documents:
            ids += self._encode(DOCUMENT.format(title=document.title, text=document.text))
        return ids + self._encode(QUESTION.format(question=question))

    @torch.no_grad()
    def answer(self, documents: list[CorpusDocument], question: str) -> str:
        ids = torch.tensor([self.prompt(documents, question)])
        length = ids.shape[1]
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            eos_token_id=EOS_ID,
        )
        text = self._tokenizer.decode(out[0, length:].tolist(), skip_special_tokens=True)
        return str(text).strip()

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
