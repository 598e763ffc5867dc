"""Greedy, temperature and top-p; a seed is a request's own."""

from __future__ import annotations

from collections import Counter

import torch

from service.records import Sampling
from service.worker.sequences.sampler import Sampler, sample

LOGITS = torch.tensor([0.0, 2.0, 1.0, 2.0, -1.0])


def draws(sampling: Sampling, count: int = 400) -> list[int]:
    sampler = Sampler(sampling)
    return [sampler(LOGITS) for _ in range(count)]


def test_temperature_zero_is_argmax_lowest_id_on_ties() -> None:
    assert set(draws(Sampling(temperature=0), 5)) == {1}


def test_a_batch_is_sampled_as_its_rows_are() -> None:
    """Greedy rows together, the others each from its own seed; in the rows' order."""
    kinds = [Sampling(temperature=0), Sampling(temperature=1.0, seed=4), Sampling(temperature=0)]
    logits = torch.stack([LOGITS, LOGITS, LOGITS.flip(0)])
    for chosen in (kinds, kinds[1:2], kinds[::2]):
        rows = logits[: len(chosen)]
        alone = [Sampler(kind) for kind in chosen]
        expected = [sampler(row) for sampler, row in zip(alone, rows, strict=True)]
        assert sample([Sampler(kind) for kind in chosen], rows) == expected
    assert sample([Sampler(kinds[0])] * 3, logits) == [1, 1, 1]


def test_frequencies_follow_the_softmax() -> None:
    counts = Counter(draws(Sampling(temperature=1.0, seed=1), 4000))
    expected = LOGITS.softmax(-1)
    for token in range(5):
        assert abs(counts[token] / 4000 - float(expected[token])) < 0.03


def test_low_temperature_sharpens() -> None:
    assert set(draws(Sampling(temperature=0.05, seed=1))) == {1, 3}


def test_a_temperature_next_to_zero_is_like_zero_between_ties() -> None:
    """What a request may ask for must not become an infinity."""
    for temperature in (1e-38, 1e-70, 5e-324):
        assert set(draws(Sampling(temperature=temperature, seed=1))) == {1, 3}


def test_top_p_keeps_the_smallest_sufficient_set() -> None:
    assert set(draws(Sampling(temperature=1.0, top_p=0.5, seed=2))) == {1, 3}
    assert set(draws(Sampling(temperature=1.0, top_p=1e-6, seed=2))) == {1}


def test_a_seed_repeats_and_another_differs() -> None:
    one = draws(Sampling(temperature=1.0, seed=5), 50)
    assert one == draws(Sampling(temperature=1.0, seed=5), 50)
    assert one != draws(Sampling(temperature=1.0, seed=6), 50)


def test_without_a_seed_one_is_drawn_that_repeats_it() -> None:
    sampler = Sampler(Sampling(temperature=1.0))
    first = [sampler(LOGITS) for _ in range(50)]
    assert first == draws(Sampling(temperature=1.0, seed=sampler.seed), 50)
