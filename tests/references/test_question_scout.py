"""The reference of question_scout."""

from __future__ import annotations

import pytest
import torch

from tests.references.fusion import cached_documents, share, top
from tests.references.question_scout import (
    Scout,
    attention_scores,
    question_scout,
    scout_rows,
)
from tests.service.worker.tiny import D1, D2, D3, Q, S, Tiny, assert_close, difference

N = len([*S, *D1, *D2, *D3, *Q])
START2 = len(S) + len(D1)


def test_scores_add_up(any_family: Tiny) -> None:
    """Every question row spends 1 per query head and layer: the last one's, and twice the mean."""
    reference, prompt = any_family.reference, any_family.prompt(uncached=[2])
    for layer in attention_scores(reference, prompt):
        assert sum(layer) == pytest.approx(3 * reference.heads, rel=1e-4)
        assert min(layer) >= 0


def test_scores_are_those_of_a_pie_pass(any_family: Tiny) -> None:
    """At layer 0 everything is exact, so it is the full prefill's; later it is not."""
    reference, prompt = any_family.reference, any_family.prompt()
    ours = attention_scores(reference, prompt, 0.5)
    rows = [a[:, N - len(Q) :].sum(0) for a in reference.vanilla(prompt.ids).attention]
    full = [a[-1] + 0.5 * a.mean(0) for a in rows]
    assert_close("scores, layer 0", torch.tensor(ours[0]), full[0])
    assert difference(torch.tensor(ours[3]), full[3]) > 1e-2


def test_rows_are_the_best_of_the_layers(any_family: Tiny) -> None:
    reference, prompt = any_family.reference, any_family.prompt()
    scores = attention_scores(reference, prompt)
    both = [a + b for a, b in zip(scores[2], scores[3], strict=True)]
    candidates, p = cached_documents(prompt), share(0.3, N)
    assert scout_rows(reference, prompt, Scout(0.3)) == top(both, candidates, p)
    one = scout_rows(reference, prompt, Scout(0.3, layers=[1]))
    assert one == top(scores[1], candidates, p)
    assert not set(scout_rows(reference, prompt, Scout(0.3), S)) & set(range(len(S), START2))


def test_limits(any_family: Tiny) -> None:
    """Ratio 0: PIE. 1: Vanilla. No shift: only the chosen rows differ from PIE's cache."""
    reference, prompt = any_family.reference, any_family.prompt()
    nothing = question_scout(reference, prompt, Scout(0))
    assert_close("scout 0 is PIE", nothing.logits[-1], reference.pie(prompt).logits[-1])
    everything = question_scout(reference, prompt, Scout(1))
    full = reference.vanilla(prompt.ids)
    assert_close("scout 1 is vanilla", everything.logits[-1], full.logits[-1])
    for uncached in ([], [2]):
        prompt = any_family.prompt(uncached=uncached)
        rows = scout_rows(reference, prompt, Scout(0.3))
        assert len(rows) == share(0.3, N) and set(rows) <= set(cached_documents(prompt))
        ours = question_scout(reference, prompt, Scout(0.3, shift=0))
        forced = sorted({*rows, *prompt.indices(uncached=True)})
        expected = reference.forced_rows(prompt, forced)
        assert_close("no shift", ours.logits[-1], expected.logits[-1])


def test_a_shift_of_one_makes_a_documents_mean_right(any_family: Tiny) -> None:
    """All rows but one of a document are computed and shift it by the mean of their errors."""
    reference, prompt = any_family.reference, any_family.prompt()
    rows = scout_rows(reference, prompt, Scout(0.3))
    trace = question_scout(reference, prompt, Scout(0.3, shift=1))
    inside = range(START2, START2 + len(D2))
    probes = [t for t in rows if t in inside]
    stored = prompt.stored[2]
    assert stored is not None and probes
    gaps = [trace.v[3][t] - stored.v[3][t - START2] for t in probes]
    for t in inside:
        if t not in rows:
            moved = trace.v[3][t] - stored.v[3][t - START2]
            assert_close("moved by the mean", moved, sum(gaps[1:], gaps[0]) / len(gaps))
