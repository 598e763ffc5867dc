"""Drafts: what is guessed, and that no answer changes by it."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from kvstitch.service.messages.requests import ChunkTokens, Method
from kvstitch.service.worker.forward.decode import BatchDecoder, decode_step
from kvstitch.service.worker.kv.pool import KVPool
from kvstitch.service.worker.model.families import decoder_for
from kvstitch.service.worker.sampling.draft import MOST_SKIPPED, Drafter
from tests.service.worker.engines import PIE, VANILLA, rig
from tests.service.worker.forward.test_decode import Running, filled
from tests.service.worker.tiny import Tiny, assert_close, random_model, tiny, tiny_config

pytestmark = pytest.mark.exhaustive

SLIDING = ("gemma2", "llama3")
SNAPKV = Method("snapkv", {"budget": 40})


def test_what_followed_the_same_words_before_is_drafted() -> None:
    drafter = Drafter([1, 2, 3, 4, 5, 6])
    assert drafter.draft([2], 4) == []  # one word is too little
    assert drafter.draft([2, 3], 4) == [4, 5, 6, 2]
    assert drafter.draft([2, 3], 2) == [4, 5]
    assert drafter.draft([2, 3], 0) == []
    assert drafter.draft([2, 3, 9], 4) == []


def test_of_several_places_the_one_with_the_longest_likeness_counts() -> None:
    """And of equal ones the last."""
    drafter = Drafter([7, 1, 2, 50, 8, 1, 2, 60, 9, 1, 2, 70])
    assert drafter.draft([8, 1, 2], 1) == [60]
    assert Drafter([7, 1, 2, 50, 8, 1, 2, 60]).draft([5, 1, 2], 1) == [60]


def test_the_answer_itself_is_a_source() -> None:
    drafter = Drafter([1])
    assert drafter.draft([5, 6, 7, 5, 6], 3) == [7, 5, 6]


def test_after_misses_there_are_fewer() -> None:
    drafter = Drafter([1, 2, 3])
    skipped = []
    for _ in range(6):
        drafter.checked(1, 0)
        count = 0
        while not drafter.draft([1, 2], 1):
            count += 1
        skipped.append(count)
    assert skipped == [1, 3, 7, MOST_SKIPPED, MOST_SKIPPED, MOST_SKIPPED]
    drafter.checked(1, 1)
    drafter.checked(1, 0)
    assert drafter.draft([1, 2], 1) == [] and drafter.draft([1, 2], 1) == [3]


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("kind", ["fp32", "bf16", "windows"])
def test_a_row_of_a_draft_is_what_a_step_of_its_own_gives(
    model: Tiny, ragged: bool, kind: str
) -> None:
    """In bfloat16 to the bit, where the kernel runs: rows do not depend on one another. Each has a
    window of its own."""
    subject, bf16 = tiny(*SLIDING) if kind == "windows" else model, kind == "bf16"
    if bf16:
        config = tiny_config("qwen3", head_dim=32, hidden_size=64, intermediate_size=96)
        narrow = decoder_for(random_model(config, dtype=torch.bfloat16))
        subject = SimpleNamespace(decoder=narrow)  # type: ignore[assignment]
    decoder = subject.decoder
    drafts = [[5, 6, 7], [], [9]]

    def running() -> list[Running]:
        pool = KVPool(
            decoder.layers, decoder.kv_heads, decoder.head_dim, 200,
            dtype=decoder.dtype, device=decoder.device,
        )  # fmt: skip
        found = [filled(subject, pool, n, ragged=ragged, room=6) for n in (40, 9, 17)]
        for each in found:
            each.tokens.append(3)
        return found

    together = running()
    logits = BatchDecoder(decoder, together[0].kv.pool).step(together, drafts)
    first = 0
    for alone, draft in zip(running(), drafts, strict=True):
        for row in range(1 + len(draft)):
            expected = decode_step(decoder, [alone])[0]
            assert_close("a drafted row", logits[first], expected, 0.0 if bf16 else 1e-4)
            alone.position += 1
            alone.tokens.append(draft[row] if row < len(draft) else 0)
            first += 1
    assert first == len(logits)


def words(seed: int, count: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, 95) for _ in range(count)]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("eviction", [None, SNAPKV])
def test_no_answer_changes(any_family: Tiny, eviction: Method | None, temperature: float) -> None:
    """Alone and with others; answers of small random models repeat themselves."""
    same_answers(any_family, eviction, temperature)


@pytest.mark.parametrize("eviction", [None, SNAPKV])
def test_no_answer_changes_behind_a_window(eviction: Method | None) -> None:
    same_answers(tiny(*SLIDING), eviction, temperature=0.7)


def same_answers(model: Tiny, eviction: Method | None, temperature: float) -> None:
    """Without drafts and with them, alone and with others."""
    asked = [(VANILLA, 40, 1), (PIE, 25, 2), (VANILLA, 3, 3), (PIE, 1, 4)]
    found, found_steps = {}, 0
    for draft_tokens in (0, 7):
        with rig(model, pool_tokens=1500, draft_tokens=draft_tokens) as running:
            alone = [
                running.answer(
                    method, question=words(seed, 9), max_tokens=most, eviction=eviction,
                    temperature=temperature, seed=seed,
                )[0]
                for method, most, seed in asked
            ]  # fmt: skip
            names = [
                running.submit(
                    method, question=words(seed, 9), max_tokens=most, eviction=eviction,
                    temperature=temperature, seed=seed,
                )
                for method, most, seed in asked
            ]  # fmt: skip
            running.run()
            found[draft_tokens] = [*alone, *map(running.tokens, names)]
            steps, drafts = running.engine.answering.steps, running.engine.answering.drafts
        if draft_tokens:
            assert steps <= found_steps and (temperature or drafts["accepted"] > 0)
        found_steps = steps
    assert found[7] == found[0]


def test_a_report_counts_its_steps(model: Tiny) -> None:
    """An answer that the prompt spells out takes fewer steps than it has tokens."""
    with rig(model, pool_tokens=1500) as plain:
        tokens, report = plain.answer(VANILLA, max_tokens=60)
        assert report.decode_steps == len(tokens) - 1
        spelled = [ChunkTokens(9, tokens)]
        expected, _ = plain.answer(VANILLA, spelled, max_tokens=60)
    with rig(model, pool_tokens=1500, draft_tokens=7) as drafting:
        ours, report = drafting.answer(VANILLA, spelled, max_tokens=60)
        assert ours == expected and report.decode_steps < len(ours) - 1


@pytest.mark.parametrize("made", [("qwen3", "yarn"), SLIDING])
def test_the_next_turn_continues_a_drafted_answer(made: tuple[str, str]) -> None:
    """What was rejected is not kept."""
    model = tiny(*made)
    with rig(model, pool_tokens=2000, draft_tokens=7, prefix_cache=True) as drafting:
        for seed in range(40):
            asked = words(seed, 60)
            tokens, _ = drafting.answer(
                VANILLA, question=asked, max_tokens=50, temperature=0.3, seed=seed
            )
            if drafting.engine.answering.drafts["rejected"]:
                break
        assert drafting.engine.answering.drafts["rejected"] > 0
        question = [*asked, *tokens, 31, 32]
        ours, report = drafting.answer(VANILLA, question=question, max_tokens=20)
        assert report.reused_tokens >= report.prompt_tokens - 3
    with rig(model, pool_tokens=2000) as plain:
        expected, _ = plain.answer(VANILLA, question=question, max_tokens=20)
    assert ours == expected
