"""Trials by a formula, so that it is known which candidate is best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvstitch_tune.candidates import Candidate
from kvstitch_tune.prompts import Prompt
from kvstitch_tune.trial import Trial

Errors = Callable[[Candidate, Prompt], float]


def cost(candidate: Candidate) -> float:
    """Roughly that of the methods: a share for the question, and the ratio."""
    parameters = dict(candidate.parameters)
    rows = float(parameters.get("ratio", 0.0)) + 0.01 * float(parameters.get("first", 0.0))
    return 0.05 + rows + 0.02 * float(parameters.get("selection_layer", 1))


class FakeRunner:
    """Records what it was asked.

    Args:
        kl: Of a candidate on a prompt.
        pass_time: Called for every trial.
        prepare: Called when a prompt is new, as for its full prefill and its documents' KV.
    """

    def __init__(
        self,
        kl: Errors,
        pass_time: Callable[[], None] = lambda: None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._kl = kl
        self._pass_time = pass_time
        self._prepare = prepare
        self.asked: list[tuple[str, str]] = []

    def measure(self, prompt: Prompt, candidates: Sequence[Candidate]) -> Iterator[list[Trial]]:
        if prompt.key not in {key for key, _ in self.asked}:
            self._prepare()
        for candidate in candidates:
            self.asked.append((prompt.key, candidate.key))
            self._pass_time()
            yield [self._trial(prompt, candidate)]

    def _trial(self, prompt: Prompt, candidate: Candidate) -> Trial:
        kl = self._kl(candidate, prompt)
        size = {"raw": 1000, "k8v8": 510, "k8v4": 410, "int4": 310}[candidate.codec]
        return Trial(
            prompt=prompt.key, configuration=candidate.key, tokens=prompt.tokens, answer_tokens=10,
            kl_first=kl, kl=kl, agree_first=1.0, agreement=max(0.0, 1 - kl), same=float(kl < 0.05),
            lead=kl,
            operations=cost(candidate), seconds=cost(candidate), full_seconds=1.0, bytes=size,
            kept=1.0,
        )  # fmt: skip


def prompts(task: str, count: int) -> list[Prompt]:
    return [Prompt(task, (1, 2), ((3, number), (4, 5)), (6,)) for number in range(count)]
