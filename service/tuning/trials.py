"""Measures candidates on prompts once: what is recorded is not measured again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from service.tuning.measuring.candidate import Candidate
from service.tuning.measuring.prompt_ids import Prompt
from service.tuning.measuring.record_file import RecordFile
from service.tuning.measuring.trial import Trial
from service.tuning.time_budget import TimeBudget


class Runner(Protocol):
    """Measures candidates on a prompt; `measuring.trial.TrialRunner` does."""

    def measure(
        self, prompt: Prompt, candidates: Sequence[Candidate]
    ) -> Iterator[Sequence[Trial]]: ...


class Trials:
    """The trials of a run, recorded as they are made.

    Args:
        path: of the file of records.
        runner: measures.
        budget: is told how long it took.
        on_progress: called after every prompt with the name of the stage, the prompts that it has
            measured and the candidates that are still in it.
    """

    def __init__(
        self,
        path: Path,
        runner: Runner,
        budget: TimeBudget,
        on_progress: Callable[[str, int, int], None],
    ) -> None:
        self._records = RecordFile(path, Trial)
        self._records.load()
        self._runner = runner
        self.budget = budget
        self._on_progress = on_progress
        self.made = 0

    def known(self, prompt: Prompt, candidates: Sequence[Candidate]) -> bool:
        """Whether all of these are recorded."""
        return all((prompt.key, c.key) in self._records for c in candidates)

    def measure(self, prompt: Prompt, candidates: Sequence[Candidate]) -> None:
        """Measures what is missing and records it."""
        missing = [c for c in candidates if (prompt.key, c.key) not in self._records]
        if missing:
            for trials in self._runner.measure(prompt, missing):
                self._records.add(trials)
                self.made += len(trials)
                self.budget.save()

    def measure_all(
        self,
        stage: str,
        prompts: Sequence[Prompt],
        candidates: Sequence[Candidate],
        *,
        until: float,
        least: int,
    ) -> list[Prompt]:
        """Measures prompt by prompt until a share of the time budget is spent.

        Args:
            stage: its name, for progress.
            prompts: in the order in which they are measured.
            candidates: all are measured on each prompt.
            until: share of the time budget.
            least: prompts that are measured even if there is no time left.

        Returns:
            The prompts that all candidates are measured on.
        """
        done: list[Prompt] = []
        for prompt in prompts:
            enough = len(done) >= least and self.budget.left_until(until) <= 0
            if enough and not self.known(prompt, candidates):
                break
            self.measure(prompt, candidates)
            done.append(prompt)
            self._on_progress(stage, len(done), len(candidates))
        return done

    def of(self, candidate: Candidate, prompts: Sequence[Prompt]) -> list[Trial]:
        """The recorded trials of a candidate on these prompts, in their order; all must exist."""
        return [self._records[prompt.key, candidate.key] for prompt in prompts]

    def complete(self, candidates: Sequence[Candidate], prompts: Sequence[Prompt]) -> list[Prompt]:
        """Those of the prompts that all of these candidates are measured on."""
        return [prompt for prompt in prompts if self.known(prompt, candidates)]
