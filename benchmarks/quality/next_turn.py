"""The second turn of a conversation, computed on what the first one left, as the prefix cache does.

    first turn    S │ documents │ Q_1                    by the method: rows that Q_1 asks for
    second turn   S │ documents │ Q_1 │ answer │ Q_2     only what comes after Q_1

The method by itself would choose its rows by both questions, at its full price. Operations are
those of the second turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kvstitch_tune.case import Case, QuestionQueries
from kvstitch_tune.single_prompts import prefill_prompt
from service.worker.api import Pie
from service.worker.methods.api import DenseMethod, PrefillResult, PromptLayout


@dataclass(frozen=True)
class NextTurn:
    """A prompt whose question holds an earlier turn and its answer.

    Attributes:
        method: of the first turn.
        prefix: how many tokens at the prompt's end begin its answer.
        cue: how many tokens before these ask for one; they end the first turn, too.
    """

    method: DenseMethod
    prefix: int = 0
    cue: int = 3

    def run(self, case: Case) -> PrefillResult:
        layout = case.layout
        split = self._end_of_first_turn(layout)
        first = PromptLayout(layout.ids[:split], layout.segments, layout.question_start)
        earlier = replace(case, layout=first).prefill(self.method)
        rest = PromptLayout(layout.ids, (), split)
        queries = QuestionQueries()
        later = prefill_prompt(case.decoder, rest, [], Pie(), case.kv, eviction=queries)
        both = zip(earlier.observed, later.observed, strict=True)
        return replace(
            later,
            observed=[torch.cat(of_layer) for of_layer in both],
            rows=torch.cat([earlier.rows, later.rows]),
            layout=layout,
        )

    def _end_of_first_turn(self, layout: PromptLayout) -> int:
        ids = layout.ids.tolist()
        end_of_cue = len(ids) - self.prefix
        cue = ids[end_of_cue - self.cue : end_of_cue]
        for end in range(layout.question_start + self.cue, end_of_cue):
            if ids[end - self.cue : end] == cue:
                return end
        raise ValueError("the question holds no earlier turn")
