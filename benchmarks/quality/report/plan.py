"""The experiments by name: what each compares, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.quality import experiments
from benchmarks.quality.configuration import Configuration
from benchmarks.quality.experiments import EVICTIONS, FULL, GUESS, OURS, RATIO, at
from benchmarks.quality.report import codecs, eviction, fusion, needle, plots
from benchmarks.quality.report.scored import Scored, Scores
from benchmarks.quality.report.tables import Compared, about, score_table
from benchmarks.quality.suites import SHORT_CONTEXT
from service.errors import InvalidRequest
from service.messages.requests import Method
from service.worker.methods.api import ModelFacts

SHORT_BUDGETS = (0.15, 0.25, 0.4, 0.6)
BUDGETS = (128, 256, 512, 1024)
QUICK_BUDGETS, QUICK_EVICTIONS = (0.25, 0.4), ("streaming_llm", "h2o", "snapkv", "kvec")
SMOKE = (FULL, "pie", at("a3", RATIO), at(OURS, RATIO))


@dataclass(frozen=True)
class Setting:
    """What configurations depend on; `evictions` are the methods that the model can use."""

    prefix_mode: str
    chunk_tokens: int
    budgets: Sequence[float]
    evictions: Sequence[str]

    @property
    def budget(self) -> float:
        """The budget of the ablation: the second one, if there are two."""
        return self.budgets[min(1, len(self.budgets) - 1)]


@dataclass(frozen=True)
class Experiment:
    """An experiment.

    Attributes:
        title: of the page.
        configurations: makes what is compared.
        sections: makes the tables.
        rivals: makes the comparisons of the tables, for the JSON.
        figures: draws the figures.
        timed: whether TTFT is measured.
        evicts: whether every eviction method that the model can use is compared.
        needle: whether it has needle samples of its own.
    """

    title: str
    configurations: Callable[[Setting], list[Configuration]]
    sections: Callable[[Scores], list[str]]
    rivals: Callable[[Scores], list[Compared]] | None = None
    figures: Callable[[Scores, Path], list[Path]] | None = None
    timed: bool = False
    evicts: bool = False
    needle: bool = False


def usable(model: ModelFacts, names: Sequence[str] = EVICTIONS) -> tuple[list[str], list[str]]:
    """The eviction methods that this model can use, and why it cannot use the others."""
    found, notes = [], []
    for name in names:
        try:
            Configuration(name, Method("vanilla"), Method(name)).check(model)
            found.append(name)
        except InvalidRequest as error:
            notes.append(f"{name} is left out: {error.message}")
    return found, notes


def default_budgets(longest: int) -> Sequence[float]:
    return SHORT_BUDGETS if longest < SHORT_CONTEXT else BUDGETS


def _fusion_figures(scores: Scores, folder: Path) -> list[Path]:
    def ratio(s: Scored) -> float | None:
        return s.configuration.point

    def flops(s: Scored) -> float | None:
        return s.flops.middle

    def ttft(s: Scored) -> float | None:
        return s.ttft.middle if s.ttft else None

    flat = [c.curve for c in scores.configurations if c.point is None]
    drawn = [
        plots.curves(
            scores.rows, folder / "fusion_ratio.png", x=ratio, label="ratio, %", flat=flat
        ),
        plots.curves(
            scores.rows,
            folder / "fusion_flops.png",
            x=flops,
            label="FLOPs, % of full prefill",
            flat=[GUESS],
        ),
    ]
    if any(s.ttft for s in scores.rows):
        label, path = "TTFT, % of full prefill", folder / "fusion_ttft.png"
        drawn.append(plots.curves(scores.rows, path, x=ttft, label=label, flat=[GUESS]))
    return drawn


def _needle(setting: Setting) -> list[Configuration]:
    wanted = [FULL, "full_reuse", "pie"]
    wanted += [at(n, RATIO) for n in ("legolink", "cacheblend", "a3", OURS)]
    made = experiments.fusion(setting.prefix_mode, setting.chunk_tokens, [RATIO])
    return [c for c in made if c.name in wanted]


def _quick(setting: Setting) -> list[Configuration]:
    return [
        *experiments.fusion(setting.prefix_mode, setting.chunk_tokens, [RATIO]),
        *experiments.eviction(QUICK_BUDGETS, available=QUICK_EVICTIONS)[1:],
        *(c for c in experiments.codecs(setting.prefix_mode) if c.codec != "raw"),
    ]


def _smoke(setting: Setting) -> list[Configuration]:
    return [c for c in _quick(setting) if c.name in SMOKE]


def _gain_sections(scores: Scores) -> list[str]:
    return [about(scores), fusion.gain_table(scores), "## By task\n", score_table(scores)]


EXPERIMENTS = {
    "fusion": Experiment(
        "Fusion methods",
        lambda s: experiments.fusion(s.prefix_mode, s.chunk_tokens),
        fusion.sections,
        fusion.rivals,
        _fusion_figures,
        timed=True,
    ),
    "variants": Experiment(
        "Baselines and bare chunks",
        lambda s: experiments.variants(s.prefix_mode),
        _gain_sections,
        fusion.rivals,
    ),
    "extension": Experiment(
        "Fusion followed by eviction",
        lambda s: experiments.extension(s.prefix_mode),
        eviction.extension_sections,
        eviction.extended,
    ),
    "eviction": Experiment(
        "Eviction methods",
        lambda s: experiments.eviction(s.budgets, available=s.evictions),
        eviction.sections,
        eviction.rivals,
        eviction.figures,
        evicts=True,
    ),
    "kvec": Experiment(
        "Parts of K-VEC",
        lambda s: experiments.kvec_parts(s.budget),
        eviction.parts_sections,
        eviction.parts,
    ),
    "codecs": Experiment(
        "Codecs of stored chunks",
        lambda s: experiments.codecs(s.prefix_mode),
        codecs.sections,
        codecs.rivals,
    ),
    "needle": Experiment(
        "Needle maps", _needle, needle.sections, figures=needle.figures, needle=True
    ),
}
QUICK = Experiment("Quick table", _quick, _gain_sections, fusion.rivals)
SMOKED = Experiment("Smoke test", _smoke, _gain_sections, fusion.rivals)
