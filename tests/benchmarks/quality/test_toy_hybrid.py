"""The toy's task, its training and its methods, on models of a few steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.quality.measure import Measurer
from benchmarks.quality.toy_hybrid import FIRST, configurations, drawn_prompts
from benchmarks.quality.toy_training import (
    FACTS,
    KEY,
    MEMORY,
    SYSTEM,
    VALUE,
    attention,
    batch,
    hybrid,
    served_rule,
    train,
)
from kvstitch.service.worker.api import decoder_for
from kvstitch_tune.prompts import prefill_ids


def test_every_answer_is_what_the_text_says() -> None:
    ids, before = batch(np.random.default_rng(1))
    for text in ids.tolist():
        facts = text[len(SYSTEM) :][: 2 * FACTS]
        said = dict(zip(facts[::2], facts[1::2], strict=True))
        assert len(said) == FACTS and all(KEY <= k < VALUE <= v for k, v in said.items())
        assert all(said[text[i]] == text[i + 1] for i in before.tolist())


@pytest.mark.parametrize("build", [hybrid, attention])
def test_a_trained_model_is_served_as_it_is(build: Callable[[], Any]) -> None:
    """Training computes with the served rule, and at its end nothing is hidden from it."""
    torch.manual_seed(1)
    model = build()
    assert train(model, 1, 3)["steps"] == 3
    ids = batch(np.random.default_rng(2))[0][:2]
    with torch.inference_mode():
        theirs = model.eval()(ids, use_cache=False).logits
        with served_rule([MEMORY[-1]]):
            rule = model(ids, use_cache=False).logits
        torch.testing.assert_close(rule, theirs, atol=1e-4, rtol=0)
        ours = prefill_ids(decoder_for(model), ids[0].tolist()).logits
    torch.testing.assert_close(ours, theirs[0, -1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("build", [hybrid, attention])
def test_first_rows_of_all_chunks_but_the_first_are_computed(build: Callable[[], Any]) -> None:
    torch.manual_seed(1)
    prompt = replace(next(drawn_prompts(1, 0)), answers=())  # free ones would take states back
    measurer = Measurer(decoder_for(build().eval()), str, longest=prompt.tokens)
    chosen = configurations(attends=build is attention)
    made = dict(zip([each.name for each in chosen], measurer.measure(prompt, chosen), strict=True))
    assert made["pie system"].rows == 0 and made["pie system"].kl_first > 1e-4
    for rows in FIRST:
        assert made[f"legolink {rows} rows primer x3"].rows == 3 * rows
