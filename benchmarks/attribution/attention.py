"""How much of an answer's attention falls on each passage, computed again with transformers.

The service's decode kernels return no attention. This is what it would have shown: the attention of
the tokens of a sentence to the tokens of each passage, as a share of what falls on all passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.attribution.asking import Case
from service.gateway.api import PromptBuilder
from service.prompt import Turn, document_ids
from service.settings import Settings


class AnswerAttention:
    """Reads one model."""

    def __init__(self, folder: Path) -> None:
        self._prompts = PromptBuilder(folder, Settings.model_validate({}))
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()

        self._last: tuple[tuple[Case, range], torch.Tensor] | None = None

    @property
    def answer_prefix(self) -> str:
        return self._prompts.format.answer_prefix

    @torch.inference_mode()
    def shares(self, case: Case, span: range) -> torch.Tensor:
        """Of one sentence of the answer; what was asked for last is kept.

        Args:
            span: The sentence, in the answer's text.

        Returns:
            `[layers, passages]`, means over heads and the sentence's tokens; rows add up to 1.
        """
        if self._last is None or self._last[0] != (case, span):
            self._last = ((case, span), self._shares(case, span))
        return self._last[1]

    def _shares(self, case: Case, span: range) -> torch.Tensor:
        prompts, tokenizer = self._prompts, self._prompts.tokenizer
        documents = [
            document_ids(prompts.format, tokenizer, passage.title, passage.text)
            for passage in case.passages
        ]
        question = prompts.encode_question([Turn("user", case.question)])
        own = case.text.removeprefix(self.answer_prefix)
        cut = max(0, span.start - (len(case.text) - len(own)))
        before = tokenizer.encode_text(own[:cut]) if cut else []
        sentence = tokenizer.encode_text(own[cut : span.stop - (len(case.text) - len(own))])
        prompt = [*prompts.system, *(i for ids in documents for i in ids), *question, *before]
        # The prompt's last token writes the sentence's first one.
        read = self._model(torch.tensor([prompt[:-1]]), use_cache=True)
        written = self._model(
            torch.tensor([[prompt[-1], *sentence[:-1]]]),
            past_key_values=read.past_key_values,
            output_attentions=True,
        )
        # [layers, heads, tokens, keys] -> [layers, keys]
        weights = torch.stack([layer[0] for layer in written.attentions]).mean(dim=(1, 2))
        return _by_passage(weights, len(prompts.system), [len(ids) for ids in documents])


def _by_passage(weights: torch.Tensor, start: int, lengths: Sequence[int]) -> torch.Tensor:
    columns = []
    for length in lengths:
        columns.append(weights[:, start : start + length].sum(dim=1))
        start += length
    shares = torch.stack(columns, dim=1)
    return shares / shares.sum(dim=1, keepdim=True)
