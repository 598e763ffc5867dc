"""The toy's task, its training and its windows, on models of a few steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.quality.configurations import Configuration
from benchmarks.quality.measure import Measurer
from benchmarks.quality.toy_hybrid import Window, drawn_prompts, split
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
from kvstitch.service.worker.api import LegoLink, decoder_for
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
            torch.testing.assert_close(
                model(ids, use_cache=False).logits, theirs, atol=1e-4, rtol=0
            )
        ours = prefill_ids(decoder_for(model), ids[0].tolist()).logits
    torch.testing.assert_close(ours, theirs[0, -1], atol=1e-4, rtol=0)


def test_a_window_of_one_row_is_legolinks_in_a_model_that_only_attends() -> None:
    torch.manual_seed(1)
    prompt = next(drawn_prompts(1, 0))
    measurer = Measurer(decoder_for(attention().eval()), str, longest=prompt.tokens)
    window = Configuration("window", Window(1), prefix_mode="primer x1")
    link = Configuration("legolink", LegoLink(1, 0), prefix_mode="primer x1")
    (ours,), (theirs,) = (
        measurer.measure(split(prompt, 1), [window]),
        measurer.measure(prompt, [link]),
    )
    assert ours.kl_first == pytest.approx(theirs.kl_first, rel=1e-3) and ours.kl_first > 1e-4
    assert ours.rows == theirs.rows - 1, "the first document stands behind S in any case"
