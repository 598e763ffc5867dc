"""One run of `kvstitch tune`: prompts are made, stages run, and the outcome is put together."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvstitch.service.errors import InvalidRequest, PromptTooLong
from kvstitch.service.worker.api import DecoderModel
from kvstitch.service.worker.methods.api import ModelFacts
from kvstitch_tune import questions as question_making
from kvstitch_tune.candidates import LAYER_METHOD, LAYER_RATIO, fixed_defaults
from kvstitch_tune.case import NEXT
from kvstitch_tune.corpus import Corpus
from kvstitch_tune.fidelity import Promise, cheapest
from kvstitch_tune.model_calibration import ModelCalibration, measured
from kvstitch_tune.prompts import Prompt
from kvstitch_tune.records import TimeBudget, Trials
from kvstitch_tune.stages import LEAST_RECOMMENDED, SCREENED_PREFIX, UNTIL, Stage, Stages
from kvstitch_tune.statistics import Bootstrap, Comparison, Summary, best_within, versus
from kvstitch_tune.trial import TrialRunner

MOST_PROMPTS = 100
"""Of the development part and of the test part each."""
TEST_PROMPT = 1.5
"""A test prompt with all finalists over one with the fixed defaults alone, in seconds; about."""
CALIBRATED_PASSAGES = 64
MEMORY_BYTES = 1 << 30
"""Of KV that is held at the same time."""


@dataclass(frozen=True)
class Plan:
    """What a run is to do.

    Attributes:
        out: Folder of its records and report.
        minutes: That it may take, those before it was stopped included.
        seed: Of everything that is drawn.
        questions: The user's own; empty: they are made from the documents.
        prefix_mode: Of the fixed defaults: what the service would use.
        fidelity: Share of answers that are to be full prefill's; None: nothing is promised.
    """

    out: Path
    minutes: float
    seed: int
    questions: Sequence[str]
    prefix_mode: str
    fidelity: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What a run has found out.

    Attributes:
        stages: By name, in their order.
        fixed: The fixed defaults on the test part.
        chosen: What was best on the development part, on the test part.
        recommended: What holds on the test part.
        against_fixed: Mean KL per token, recommended minus fixed, in pairs.
        selection_layer: At which A3 ranked best on the development part.
        questions: How many were made or given, and how.
        documents: How many there are.
        prompt_tokens: Median length of a prompt.
        spent_s: Seconds that the run has taken.
        trials: That were made in this part of the run.
        model: Heads and layers.
        promise: What keeps the fidelity that was asked for; None: nothing was, or too few prompts.
        enough: Whether there were test prompts enough to recommend something by.
        needed_minutes: That a run with test prompts enough would take; 0 if that takes more
            questions.
    """

    stages: dict[str, Stage]
    fixed: Summary
    chosen: Summary
    recommended: Summary
    against_fixed: Comparison
    selection_layer: int
    questions: str
    documents: int
    prompt_tokens: int
    spent_s: float
    trials: int
    model: ModelCalibration
    promise: Promise | None
    enough: bool
    needed_minutes: float


def run(
    plan: Plan,
    corpus: Corpus,
    decoder: DecoderModel,
    facts: ModelFacts,
    *,
    model_folder: Path,
    records: Path,
    has_bos: bool,
    on_progress: Callable[[str, int, int], None],
    on_estimate: Callable[[int, float], None],
) -> Outcome:
    """Run, or go on with, what `plan` says."""
    plan.out.mkdir(parents=True, exist_ok=True)
    budget = TimeBudget(records.with_suffix(".time.json"), 60 * plan.minutes)
    budget.load()
    prompts, how = _prompts(plan, corpus)
    heads_end = budget.spent + UNTIL["heads"] * budget.seconds
    passages = corpus.passages(CALIBRATED_PASSAGES, random.Random(plan.seed))
    model = measured(
        records.with_suffix(".model.json"),
        decoder,
        model_folder,
        [passage.text for passage in passages],
        seed=plan.seed,
        time_is_up=lambda: budget.spent >= heads_end,
    )
    facts = model.facts(facts)
    budget.save()
    half = (len(prompts) + 1) // 2
    development, test = prompts[:half][:MOST_PROMPTS], prompts[half:][:MOST_PROMPTS]
    longest = max(prompt.tokens for prompt in (*development, *test))
    runner = TrialRunner(decoder, facts, longest=longest, memory_bytes=MEMORY_BYTES)
    trials = Trials(records, runner, budget, on_progress)
    fixed = fixed_defaults(plan.prefix_mode, stateful=facts.stateful)
    stages = Stages(trials, development, test, fixed, facts=facts, has_bos=has_bos, seed=plan.seed)
    if prompt_s := stages.probe():
        for_test = (UNTIL["test"] - UNTIL["storage"]) * budget.seconds
        expected = for_test / (TEST_PROMPT * prompt_s)
        on_estimate(int(expected), _minutes_for(LEAST_RECOMMENDED / expected, plan.minutes))
    screened = stages.screen()
    prefixed = stages.prefix(screened)
    cost = max(
        screened.find(replace(fixed, prefix_mode=SCREENED_PREFIX)).operations,
        min(s.operations for s in prefixed.summaries),
    )
    raw = best_within(prefixed.summaries, cost).candidate
    stored = stages.storage(raw)
    best = stages.codec_of(stored, raw)
    tested = stages.test(screened, best)
    recommended, promise = stages.holding(tested, best), None
    bootstrap = Bootstrap(tested.prompts, seed=plan.seed)
    enough = tested.prompts >= LEAST_RECOMMENDED
    if plan.fidelity is not None and enough:
        promise = cheapest(plan.fidelity, tested.summaries, bootstrap)
        recommended = promise.summary
    budget.save()
    return Outcome(
        stages={stage.name: stage for stage in (screened, prefixed, stored, tested)},
        fixed=tested.find(fixed),
        chosen=tested.find(best),
        recommended=recommended,
        against_fixed=versus(recommended, tested.find(fixed), bootstrap),
        selection_layer=_selection_layer(screened),
        questions=how,
        documents=corpus.documents,
        prompt_tokens=sorted(p.tokens for p in prompts)[len(prompts) // 2],
        spent_s=budget.spent,
        trials=trials.made,
        model=model,
        promise=promise,
        enough=enough,
        needed_minutes=(
            _minutes_for(LEAST_RECOMMENDED / tested.prompts, budget.spent / 60)
            if tested.prompts < LEAST_RECOMMENDED <= len(test)
            else 0.0
        ),
    )


def _minutes_for(times: float, minutes: float) -> float:
    """Return so many times these minutes, on the whole ones."""
    return float(math.ceil(times * minutes))


def _prompts(plan: Plan, corpus: Corpus) -> tuple[list[Prompt], str]:
    """Return prompts in random order, and how their questions came about."""
    rng = random.Random(plan.seed)
    if plan.questions:
        questions, how = list(plan.questions), "given"
    else:
        passages = corpus.passages(2 * MOST_PROMPTS, rng)
        questions = question_making.of_passages([p.text for p in passages], rng)
        how = "made from sentences of the documents"
    rng.shuffle(questions)
    made, too_long = list[Prompt](), 0
    for question in questions[: 2 * MOST_PROMPTS]:
        try:
            made.append(corpus.prompt(question, task="tune"))
        except PromptTooLong:
            too_long += 1
    found = [p for p in made if any(p.documents)]
    if len(found) < 2:
        raise InvalidRequest(
            f"there are {len(found)} questions with passages that fit into the model's context "
            f"with {NEXT + 2} tokens of answer ({too_long} are too long): two at least are "
            "needed. Give more documents or --questions, or a lower --top-k or --chunk-tokens",
            field="documents",
        )
    return found, f"{len(found)} questions, {how}"


def _selection_layer(screened: Stage) -> int:
    """The layer at which A3 at the usual ratio ranked best, over prompts common to all layers; the
    paper's if none was tried."""
    tried = [
        s
        for s in screened.summaries
        if s.candidate.method == LAYER_METHOD
        and dict(s.candidate.parameters)["ratio"] == LAYER_RATIO
    ]
    if not tried:
        return 1
    common = min(len(s.trials) for s in tried)
    best = min(tried, key=lambda s: sum(t.kl for t in s.trials[:common]))
    return int(dict(best.candidate.parameters).get("selection_layer", 1))
