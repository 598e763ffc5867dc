"""The outcome of a run as JSON: the report, and the calibration that the service reads.

What an operator should know about the measured documents, whatever is recommended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from kvstitch.service.prompt import CHUNK_PREFIX_MODES
from kvstitch_tune.candidates import FULL_PREFILL
from kvstitch_tune.fidelity import Promise
from kvstitch_tune.run import Outcome, Plan
from kvstitch_tune.stages import Stage
from kvstitch_tune.statistics import Bootstrap, Estimate, Summary, compare

GATE_MARGIN = 0.05
"""The gate tolerates this much less agreement than the lower end of the measured interval."""
GATE_FACTOR = 2.0
"""The gate tolerates this many times the upper end of the measured mean KL."""
GATE_PROMPTS = 20
"""From fewer prompts no bounds follow: all of four first tokens agree with most methods."""
LEAST_KL = 0.01
"""Nats; a tighter bound would be about rounding."""


def evidence(outcome: Outcome, plan: Plan, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the figures rest on; `about` names model, machine and versions."""
    return {
        **about,
        "seed": plan.seed,
        "minutes": plan.minutes,
        "spent_s": round(outcome.spent_s),
        "documents": outcome.documents,
        "questions": outcome.questions,
        "prompt_tokens_median": outcome.prompt_tokens,
        "prompts": {name: stage.prompts for name, stage in outcome.stages.items()},
        "head_probes": {"tried": outcome.model.probes, "answered": outcome.model.answered},
        "layer_documents": outcome.model.documents,
        "kl_minus_fixed_defaults": _estimate(outcome.against_fixed.difference),
        "prompts_won_against_fixed_defaults": round(outcome.against_fixed.won, 3),
        "enough_test_prompts": outcome.enough,
        "needed_minutes": outcome.needed_minutes,
        "left_out": {name: stage.left_out for name, stage in outcome.stages.items()},
    }


def calibration(outcome: Outcome, model: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of calibration.json that this run decides."""
    best, tested = outcome.recommended, outcome.stages["test"]
    defaults = {**best.candidate.fields, "eviction": None, **gate_bounds(best)}
    if (promise := outcome.promise) is not None:
        defaults["exact_below"] = promise.exact_below if promise.pays else 0.0
        if not promise.pays:
            defaults["fusion"] = {"method": FULL_PREFILL}
    return {
        "model": model,
        "defaults": defaults,
        "measured": [_row(s) for s in tested.summaries if not s.candidate.eviction],
        "evidence": found,
        **outcome.model.fields,
        "selection_layer": outcome.selection_layer,
    }


def gate_bounds(best: Summary) -> dict[str, float]:
    """Return what the gate may demand of the recommended settings without false alarms."""
    if len(best.trials) < GATE_PROMPTS:
        return {}
    return {
        "gate_min_agreement": round(max(0.0, best.agree_first.low - GATE_MARGIN), 3),
        "gate_max_kl": round(max(LEAST_KL, GATE_FACTOR * best.kl_first.high), 4),
    }


def report(outcome: Outcome, found: dict[str, Any]) -> dict[str, Any]:
    """Return all stages with all candidates, and what was made of them."""
    stages = [_stage(stage) for stage in outcome.stages.values()]
    return {
        "recommended": _row(outcome.recommended),
        "fixed_defaults": _row(outcome.fixed),
        "promise": _promise(outcome.promise),
        "best_on_development_part": _row(outcome.chosen),
        "selection_layer": outcome.selection_layer,
        "stable_layers": outcome.model.stable_layers,
        "evidence": found,
        "stages": stages,
        "warnings": warnings(outcome.stages.values()),
    }


def _promise(promise: Promise | None) -> dict[str, Any] | None:
    if promise is None:
        return None
    return {
        "fidelity": promise.asked,
        "pays": promise.pays,
        "exact_below": promise.exact_below,
        "same_answer": _estimate(promise.same),
        "taken_over": round(promise.taken_over, 4),
        "operations": round(promise.operations, 4),
    }


def _stage(stage: Stage) -> dict[str, Any]:
    rows = sorted(stage.summaries, key=lambda s: (s.operations, s.kl.mean))
    return {"name": stage.name, "prompts": stage.prompts, "candidates": [_row(s) for s in rows]}


def _row(s: Summary) -> dict[str, Any]:
    return {
        "label": s.candidate.label,
        **s.candidate.fields,
        "prompts": len(s.trials),
        "kl": _estimate(s.kl),
        "kl_first": _estimate(s.kl_first),
        "agreement": _estimate(s.agreement),
        "agree_first": _estimate(s.agree_first),
        "same_answer": _estimate(s.same),
        "operations": round(s.operations, 4),
        "ttft_ratio": round(s.ttft, 4),
        "ttft_s": round(s.seconds, 4),
        "bytes": round(s.bytes),
        "kept": round(s.kept, 4),
    }


def _estimate(estimate: Estimate) -> dict[str, float]:
    return {name: round(value, 5) for name, value in asdict(estimate).items()}


def warnings(stages: Iterable[Stage]) -> list[str]:
    """Return a sentence for each prefix mode that puts chunks before others and does harm."""
    summaries = [s for stage in stages if stage.name == "prefix" for s in stage.summaries]
    return [text for mode in CHUNK_PREFIX_MODES for text in _harm(mode, summaries)]


def _harm(mode: str, summaries: Sequence[Summary]) -> Iterator[str]:
    pairs = [
        (behind, alone)
        for behind in summaries
        if behind.candidate.prefix_mode == mode
        for alone in summaries
        if alone.candidate == replace(behind.candidate, prefix_mode="system")
    ]
    by_prompt: dict[str, list[tuple[float, float]]] = {}
    for behind, alone in pairs:
        kl = {trial.prompt: trial.kl for trial in alone.trials}
        for trial in behind.trials:
            if trial.prompt in kl:
                by_prompt.setdefault(trial.prompt, []).append((trial.kl, kl[trial.prompt]))
    if not by_prompt:
        return
    means = [[fmean(each) for each in zip(*both, strict=True)] for both in by_prompt.values()]
    behind_kl, alone_kl = zip(*means, strict=True)
    if compare(Bootstrap(len(means)), behind_kl, alone_kl).difference.low > 0:
        yield (
            f"prefix_mode {mode} does harm on these documents: KL {fmean(behind_kl):.3g} nats per "
            f"token, behind the system prompt alone {fmean(alone_kl):.3g} (mean of "
            f"{len(pairs)} configurations on {len(means)} prompts). Chunks stand behind others "
            "than those that they are asked with: use system, or put documents of different kinds "
            "into collections of their own."
        )
