"""Greedy, temperature, and what may be drawn; a seed is a request's own."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from kvstitch.service.messages.requests import Sampling
from kvstitch.service.worker.sampling.sampler import LogitAdjustments, Sampler

LOGITS = torch.tensor([0.0, 2.0, 1.0, 2.0, -1.0])


def draws(sampling: Sampling, count: int = 400) -> list[int]:
    sampler = Sampler(sampling)
    return [sampler(LOGITS) for _ in range(count)]


def test_temperature_zero_is_argmax_lowest_id_on_ties() -> None:
    assert set(draws(Sampling(temperature=0), 5)) == {1}


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


def test_top_k_keeps_the_likeliest_and_their_equals() -> None:
    assert set(draws(Sampling(temperature=5.0, top_k=1, seed=2))) == {1, 3}  # equally likely
    assert set(draws(Sampling(temperature=5.0, top_k=3, seed=2))) == {1, 2, 3}
    assert set(draws(Sampling(temperature=5.0, top_k=99, seed=2))) == {0, 1, 2, 3, 4}


def test_min_p_is_relative_to_the_likeliest() -> None:
    # exp(-1) = .37 of the likeliest for token 2, exp(-2) = .14 for token 0.
    assert set(draws(Sampling(temperature=1.0, min_p=0.3, seed=2))) == {1, 2, 3}
    assert set(draws(Sampling(temperature=1.0, min_p=0.1, seed=2))) == {0, 1, 2, 3}
    assert set(draws(Sampling(temperature=1.0, min_p=1.0, seed=2))) == {1, 3}


def test_a_seed_repeats_and_another_differs() -> None:
    one = draws(Sampling(temperature=1.0, seed=5), 50)
    assert one == draws(Sampling(temperature=1.0, seed=5), 50)
    assert one != draws(Sampling(temperature=1.0, seed=6), 50)


def test_without_a_seed_one_is_drawn_that_repeats_it() -> None:
    sampler = Sampler(Sampling(temperature=1.0))
    first = [sampler(LOGITS) for _ in range(50)]
    assert first == draws(Sampling(temperature=1.0, seed=sampler.seed), 50)


def adjusted(sampling: Sampling, count: int, prompt: tuple[int, ...] = ()) -> list[int]:
    sampler = Sampler(sampling, LogitAdjustments.of(sampling, lambda: torch.tensor(prompt), {1}))
    assert not sampler.takes_likeliest
    return [sampler(LOGITS) for _ in range(count)]


def test_a_bias_is_added() -> None:
    assert adjusted(Sampling(logit_bias={4: 3.5}), 2) == [4, 4]
    assert adjusted(Sampling(logit_bias={1: -100.0, 3: -100.0}), 2) == [2, 2]


def test_end_tokens_wait_for_the_shortest_length() -> None:
    assert adjusted(Sampling(min_tokens=2), 4) == [3, 3, 1, 1]  # 1 ends an answer


def test_presence_is_taken_off_once_and_frequency_every_time() -> None:
    # Greedy at 2, 2, 1, 0, -1: what was taken falls behind.
    assert adjusted(Sampling(presence_penalty=1.5), 6) == [1, 3, 2, 1, 1, 1]
    assert adjusted(Sampling(frequency_penalty=0.9), 6) == [1, 3, 1, 3, 2, 1]


def test_the_repetition_penalty_counts_the_prompt_and_both_signs() -> None:
    assert adjusted(Sampling(repetition_penalty=2.5), 3, prompt=(1, 3)) == [2, 1, 1]
    half = Sampling(repetition_penalty=2.0)
    negative = Sampler(half, LogitAdjustments.of(half, lambda: torch.tensor([1]), ()))
    assert negative(torch.tensor([-1.5, -1.0])) == 0  # -1 becomes -2


def test_what_asks_for_nothing_adjusts_nothing() -> None:
    def unasked() -> torch.Tensor:
        raise AssertionError("nobody needs the prompt's tokens")

    assert LogitAdjustments.of(Sampling(temperature=1.0, top_k=3, min_p=0.1), unasked, [2]) is None
    assert Sampler(Sampling()).takes_likeliest


def reference_top_p(weights: torch.Tensor, top_p: float) -> torch.Tensor:
    ordered, index = weights.double().sort(descending=True, stable=True)
    before = ordered.cumsum(0) - ordered
    kept = before < top_p * ordered.sum()
    kept[0] = True
    out = torch.zeros_like(weights)
    out[index[kept]] = weights[index[kept]]
    return out


@pytest.mark.parametrize("spread", [0.1, 2.0, 30.0])
@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.999, 0.9999999])
def test_top_p_without_sorting_everything(spread: float, top_p: float) -> None:
    """The same set as after sorting the whole vocabulary, ties by the lowest id."""
    from kvstitch.service.worker.sampling.sampler import keep_top_p

    scores = torch.randn(5000, generator=torch.Generator().manual_seed(3)).mul(spread).round()
    weights = (scores - scores.max()).exp()
    expected = reference_top_p(weights, top_p)
    keep_top_p(weights, top_p)
    assert torch.equal(weights, expected)
