"""Makes experiments: answers a suite's samples once for all of them, and writes the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.quality.bench import Result, Timing
from benchmarks.quality.configuration import Configuration
from benchmarks.quality.report import document
from benchmarks.quality.report.plan import Experiment, Setting, default_budgets, usable
from benchmarks.quality.report.processes import answer
from benchmarks.quality.report.scored import Scores
from benchmarks.quality.report.subject import Subject, longest
from benchmarks.quality.run import Shards, complete, time_all
from benchmarks.quality.suites import RANKED_FROM, Choice, chunk_tokens, draw
from service.settings import demo_model


class Maker:
    """Makes experiments on one suite: `prepare` finds errors first, `make` does the work."""

    def __init__(
        self,
        subject: Subject,
        choice: Choice,
        folder: Path,
        experiments: Mapping[str, Experiment],
    ) -> None:
        self._subject, self._choice, self._folder = subject, choice, folder
        self._experiments = experiments
        self.written: list[Path] = []

    def prepare(self) -> None:
        """Draws the samples and checks all configurations.

        Raises:
            InvalidRequest: the suite, a task or a method's parameter is wrong.
            UnknownMethod: there is no such method.
            PromptTooLong: the model cannot hold a prompt.
        """
        subject = self._subject
        self._samples = draw(self._choice, subject.encoder, subject.decoder.max_context)
        evictions, self._notes = usable(subject.facts)
        setting = Setting(
            subject.encoder.prefix_mode,
            chunk_tokens(self._choice),
            default_budgets(longest(self._samples)),
            evictions,
        )
        self._configurations = {n: e.configurations(setting) for n, e in self._experiments.items()}
        for configuration in self._all(self._experiments):
            configuration.check(subject.facts)

    def make(self, *, processes: int, timed: int, fresh: bool) -> dict[str, Scores]:
        """Measures and writes; returns the experiments with at least one complete sample."""
        label = self._subject.label
        results = Shards(self._folder, f"answers-{label}", Result)
        timings = Shards(self._folder, f"timings-{label}", Timing)
        if fresh:
            results.discard()
            timings.discard()
        answer(
            self._subject,
            self._samples,
            self._all(self._experiments),
            results,
            processes=processes,
        )
        to_time = [name for name, e in self._experiments.items() if e.timed]
        if timed and to_time:
            with self._subject.bench(longest(self._samples)) as bench:
                time_all(bench, self._samples[:timed], self._all(to_time), timings)
        made = {}
        for name in self._experiments:
            run = complete(self._samples, self._configurations[name], results, timings)
            if run.samples:
                ranked_from = RANKED_FROM.get(self._choice.suite, 0.0)
                made[name] = Scores(run, self._configurations[name], ranked_from=ranked_from)
                self._write(name, made[name])
        return made

    def _write(self, name: str, scores: Scores) -> None:
        experiment = self._experiments[name]
        subject, choice = self._subject, self._choice
        folder = subject.place.folder
        model = "demo model" if folder == demo_model() else folder.name
        notes = self._notes if experiment.evicts else []
        facts: dict[str, Any] = {
            "what": f"{experiment.title}: {model}, {len(scores.run.samples)} samples of "
            f"{choice.suite}",
            "model": {"name": model, "fingerprint": subject.fingerprint, "dtype": subject.dtype},
            "suite": choice.suite,
            "seeds": list(choice.seeds),
            "samples_per_task": choice.samples,
            "chunk_tokens": chunk_tokens(choice),
            "threads": subject.place.threads,
            "left_out": notes,
        }
        pictures = experiment.figures(scores, self._folder) if experiment.figures else []
        sections = [*experiment.sections(scores), *(f"{note}\n" for note in notes)]
        rivals = experiment.rivals(scores) if experiment.rivals else []
        self.written += document.write(
            self._folder, name, facts, scores, sections, rivals, pictures=pictures
        )

    def _all(self, names: Sequence[str] | Mapping[str, Experiment]) -> list[Configuration]:
        """The configurations of these experiments, each once."""
        found = (c for name in names for c in self._configurations[name])
        return list({c.key: c for c in found}.values())
