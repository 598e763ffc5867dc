"""Log-probabilities: those of transformers on the same prompt, whatever else is in the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.sampling.sampler import LEAST, token_logprobs
from tests.service.worker.engines import DOCUMENTS, PIE, VANILLA, rig
from tests.service.worker.tiny import D1, D2, D3, VOCABULARY, Q, S, Tiny

PROMPT = [*S, *D1, *D2, *D3, *Q]


def expected(model: Tiny, answer: list[int]) -> Tensor:
    """transformers' log-probabilities at every token of the answer, `[tokens, vocabulary]`."""
    logits = model.model(torch.tensor([PROMPT + answer])).logits[0]
    return logits[len(PROMPT) - 1 : -1].float().log_softmax(-1)


@pytest.mark.parametrize(("temperature", "seed"), [(0.0, None), (1.3, 7)])
def test_they_are_those_of_transformers(
    any_family: Tiny, temperature: float, seed: int | None
) -> None:
    """Also of a sampled answer: temperature does not change them."""
    with rig(any_family) as r:
        name = r.submit(VANILLA, max_tokens=9, temperature=temperature, seed=seed, logprobs=20)
        r.run()
    tokens, found = r.tokens(name), r.logprobs(name)
    assert len(tokens) == len(found) > 2
    for token, one, wanted in zip(tokens, found, expected(any_family, tokens), strict=True):
        assert one is not None
        assert abs(one.logprob - float(wanted[token])) < 1e-4
        values, ids = wanted.topk(20)
        assert [id for id, _ in one.top] == ids.tolist()
        assert torch.allclose(torch.tensor([x for _, x in one.top]), values, atol=1e-4)


def test_each_request_of_a_batch_gets_as_many_as_it_wants(model: Tiny) -> None:
    wants = (None, 0, 3, None, 20)
    with rig(model) as r:
        r.precompute()
        names = [r.submit(PIE, max_tokens=5, logprobs=count) for count in wants]
        r.run()
        alone = r.submit(PIE, max_tokens=5, logprobs=20)
        r.run()
    assert len({tuple(r.tokens(name)) for name in [*names, alone]}) == 1
    full = r.logprobs(alone)
    for name, count in zip(names, wants, strict=True):
        for one, all_of_them in zip(r.logprobs(name), full, strict=True):
            if count is None:
                assert one is None
                continue
            assert one is not None and all_of_them is not None
            assert one.logprob == pytest.approx(all_of_them.logprob, abs=1e-5)
            assert [id for id, _ in one.top] == [id for id, _ in all_of_them.top[:count]]


def test_they_show_how_far_a_method_is_from_full_prefill(model: Tiny) -> None:
    """Which is what users want them for."""
    with rig(model) as r:
        r.precompute()
        names = [
            r.submit(method, DOCUMENTS, max_tokens=1, logprobs=20) for method in (VANILLA, PIE)
        ]
        r.run()
    full, fused = (r.logprobs(name)[0] for name in names)
    assert full is not None and fused is not None and full.top != fused.top


def test_of_equal_logits_the_lowest_ids_come_first() -> None:
    """As greedy sampling has it; with bfloat16 equal logits are common."""
    logits = torch.zeros(2, 50)
    logits[0, [40, 7, 9]] = 3.0
    first, second = token_logprobs([2, 3], [7, 0], logits)
    assert first is not None and second is not None
    assert [id for id, _ in first.top] == [7, 9]
    assert [id for id, _ in second.top] == [0, 1, 2]
    assert first.logprob == first.top[0][1] == pytest.approx(float(logits[0].log_softmax(-1)[7]))


def test_more_than_the_vocabulary_is_the_vocabulary() -> None:
    (one,) = token_logprobs([500], [3], torch.randn(1, VOCABULARY))
    assert one is not None and len(one.top) == VOCABULARY


def test_an_impossible_token_is_a_number() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 1.0]])
    (one,) = token_logprobs([3], [1], logits)
    assert one is not None and one.logprob == LEAST and one.top[-1] == (1, LEAST)
