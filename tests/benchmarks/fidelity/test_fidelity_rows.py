"""Which rows the ablation's variants recompute, and that they leave the rest alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.fidelity.ablation import Ablation, Calibration
from benchmarks.fidelity.compared.configuration import Configuration
from benchmarks.fidelity.compared.picking import Pick
from benchmarks.fidelity.compared.recipes import TwoRounds
from benchmarks.fidelity.compared.variants import ScoutVariant
from benchmarks.fidelity.measure import Measurer
from service.tuning.measuring.case import Case
from service.tuning.measuring.segment_store import SegmentStore
from service.worker.api import Pie, QuestionScout
from service.worker.methods.api import PromptLayout
from tests.benchmarks.cases import a_prompt, decode
from tests.service.worker.tiny import Q, Tiny


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.25, 0.6, 1.0])
@pytest.mark.parametrize("edge", [0, 1, 4, 50])
def test_the_ablation_starts_from_the_service_method(model: Tiny, ratio: float, edge: int) -> None:
    ours = model.stitch(ScoutVariant(Pick(ratio, edge))).result
    service = model.stitch(QuestionScout(ratio, edge, again_from=0)).result
    assert ours.rows.equal(service.rows)
    assert ours.flops == service.flops
    assert ours.logits.equal(service.logits)


def layout_of(*sizes: int) -> PromptLayout:
    return PromptLayout.of(
        [1, 2], [[3] * n for n in sizes], [4], uncached=[False] * (len(sizes) + 1)
    )


def test_picking_by_hand() -> None:
    layout = layout_of(5, 5)  # documents at 2..6 and 7..11, n = 13
    attention_scores = torch.tensor([9, 9, 0, 0, 5, 0, 0, 0, 4, 0, 3, 0, 9], dtype=torch.float32)

    def rows(**pick: Any) -> list[int]:
        return Pick(**{"ends": 1.0, **pick}).rows(layout, attention_scores).tolist()

    assert rows(ratio=2 / 13, first=0) == [4, 8]
    assert rows(ratio=3 / 13, first=0) == [4, 8, 10]
    assert rows(ratio=2 / 13, first=1) == [2, 7]
    assert rows(ratio=3 / 13, first=1) == [2, 4, 7]
    assert rows(ratio=5 / 13, first=1, last=1) == [2, 4, 6, 7, 11]
    assert rows(ratio=3 / 13, first=0, dilate=1) == [3, 4, 5]
    assert rows(ratio=4 / 13, first=0, pool=1) == [3, 4, 5, 7]
    assert rows(ratio=4 / 13, first=3, ends=0.5) == [2, 4, 7, 8]
    assert rows(ratio=6 / 13, first=3, ends=0.5) == [2, 3, 4, 7, 8, 10]
    assert rows(ratio=1.0) == list(range(2, 12))
    assert rows(ratio=0.0) == []


def test_two_rounds_repair_twice(model: Tiny) -> None:
    """Half of the rows each; the second round leaves the first one's KV as it was computed."""
    prompt = a_prompt()
    with torch.inference_mode():
        store = SegmentStore(model.adapter)
        run = model.stitch(Pie(), prompt.system, prompt.documents, prompt.question)
        case = Case.of(
            model.adapter, prompt, store, run.sequence,
            prefix_mode="none", codec="raw", attention_scores=torch.zeros(prompt.tokens),
        )  # fmt: skip
        first = case.prefill(ScoutVariant(Pick(0.2)))
        kept = [x.clone() for layer in range(5) for x in run.sequence.prompt_layer(layer, 38)]
        both = TwoRounds(Pick(0.4)).run(case)
        after = [x for layer in range(5) for x in run.sequence.prompt_layer(layer, 38)]
    share = math.floor(0.2 * prompt.tokens)
    assert len(first.rows) == share + len(Q)
    assert len(both.rows) == 2 * share + len(Q)
    early = [row for row in first.rows.tolist() if row < prompt.tokens - len(Q)]
    assert set(early) < set(both.rows.tolist())
    for a, b in zip(kept, after, strict=True):
        assert a[:, early].allclose(b[:, early], atol=1e-6)
    assert both.flops > 2 * first.flops * 0.9


def test_stored_segments_are_left_alone(model: Tiny) -> None:
    prompt = a_prompt()
    measurer = Measurer(model.adapter, decode, longest=prompt.tokens)
    chosen = Calibration((1, 0), ((0, 1), (2, 3)))
    [before] = measurer.measure(prompt, [Configuration("pie", Pie())])
    last = measurer.measure(
        prompt, [*Ablation(5, 6).configurations(chosen), Configuration("pie", Pie())]
    )[-1]
    # What was decoded in a batch of another size differs by rounding.
    same = {"seconds": 0.0, "kl_next": 0.0}
    assert replace(before, **same) == replace(last, **same)
    assert before.kl_next == pytest.approx(last.kl_next, rel=1e-5)
