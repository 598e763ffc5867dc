"""Prompts that are asked more than once stay on disk, and are continued from there to the bit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvstore import TierUnavailable
from service.messages.reports import Report
from service.messages.requests import Method
from service.worker.gate.correctness_gate import GateSettings
from service.worker.gate.policy import Bounds
from service.worker.prefix_cache.prompts import NewPrompt, PromptIndex, PromptRecord
from tests.kvstore.fake_tier import FakeTier
from tests.service.worker.engines import PIE, VANILLA, Rig, rig
from tests.service.worker.gate.gated_engine import BROKEN, ask, state_of
from tests.service.worker.prefix_cache.test_in_pool import (
    ASKED,
    DOCUMENTS,
    OTHER,
    SCOUT,
    next_turn,
    words,
)
from tests.service.worker.tiny import Tiny

TENANT = "acme"
METHODS = pytest.mark.parametrize("method", [VANILLA, SCOUT], ids=lambda m: m.name)


def settle(running: Rig) -> None:
    """Steps until everything is written that is worth it."""
    prompts = running.engine.disk_prefix_cache
    assert prompts is not None
    while not running.engine.idle or prompts.writing:
        running.events.extend(running.engine.step())
        time.sleep(1e-4)


def converse(running: Rig, method: Method, *, turns: int = 2, **how: object) -> list[int]:
    """The first turns of a conversation; returns the question of the next one."""
    question = ASKED
    for _ in range(turns):
        tokens, _ = running.answer(method, DOCUMENTS, question=question, **how)
        question = [*question, *tokens, *words(6, 7)]
    settle(running)
    return question


def push_out(running: Rig) -> None:
    """Fills the pool with other prompts, so that it gives up all that it keeps."""
    for n in range(2):
        running.answer(VANILLA, [], question=words(99 + n, 180), max_tokens=2)


def logits(running: Rig, method: Method, question: Sequence[int]) -> tuple[Tensor, Report]:
    """Of the first token, and the report of the answer."""
    name = running.submit(method, DOCUMENTS, question=question)
    while not running.tokens(name):
        running.events.extend(running.engine.step())
    (sequence,) = running.engine.scheduler.running
    assert sequence.logits is not None
    first = sequence.logits.clone()
    running.run()
    return first, running.done(name).report


@METHODS
def test_a_conversation_goes_on_from_disk_as_from_the_pool(
    model: Tiny, tmp_path: Path, method: Method
) -> None:
    """After it was pushed out of the pool, and after a restart: the same logits, to the bit."""
    with rig(model, prefix_cache=True, pool_tokens=400) as without:
        without.precompute([*DOCUMENTS, OTHER])
        question = next_turn(without.answer(method, DOCUMENTS, question=ASKED)[0])
        question = [*question, *without.answer(method, DOCUMENTS, question=question)[0], 8, 9]
        expected, from_pool = logits(without, method, question)
        assert from_pool.reused_from == "pool"
        twice = logits(without, method, question)[0]

    with rig(model, prefix_cache=True, pool_tokens=400, prompts=tmp_path) as running:
        running.precompute([*DOCUMENTS, OTHER])
        assert [*converse(running, method)[:-7], 8, 9] == question
        push_out(running)
        got, report = logits(running, method, question)
        assert report.reused_from == "prompts" and torch.equal(got, expected)
        assert report.reused_tokens == from_pool.reused_tokens
        assert report.recomputed_tokens == from_pool.recomputed_tokens == 3
        assert {d.tier for d in [report.system, *report.documents]} == {"prompts"}
        # From here on it is in the pool again.
        assert logits(running, method, question)[1].reused_from == "pool"
        assert running.engine.prefix_cache.counts == {"pool": 2, "prompts": 1}
    with rig(model, prefix_cache=True, pool_tokens=400, prompts=tmp_path) as restarted:
        got, report = logits(restarted, method, question)
        assert report.reused_from == "prompts" and torch.equal(got, expected)
        again, report = logits(restarted, method, question)
        assert report.flops == 0 and torch.equal(again, twice)


@METHODS
def test_the_same_prompt_again_computes_nothing_after_a_restart(
    model: Tiny, tmp_path: Path, method: Method
) -> None:
    with rig(model, prefix_cache=True, pool_tokens=400, prompts=tmp_path) as running:
        running.precompute([*DOCUMENTS, OTHER])
        expected, _ = logits(running, method, ASKED)
        running.answer(method, DOCUMENTS, question=ASKED)
        settle(running)
    with rig(model, prefix_cache=True, pool_tokens=400, prompts=tmp_path) as restarted:
        got, report = logits(restarted, method, ASKED)
        assert report.reused_tokens == report.prompt_tokens and report.flops == 0
        assert torch.equal(got, expected)


def test_a_prompt_that_was_pushed_out_before_it_came_again_is_stored_then(
    model: Tiny, tmp_path: Path
) -> None:
    with rig(model, prefix_cache=True, pool_tokens=400, prompts=tmp_path) as running:
        running.answer(VANILLA, DOCUMENTS, question=ASKED)
        push_out(running)
        settle(running)
        assert stored(running) == 0  # it was asked once
        assert running.answer(VANILLA, DOCUMENTS, question=ASKED)[1].reused_tokens == 0
        settle(running)
        assert stored(running) == 1
        push_out(running)
        again = running.answer(VANILLA, DOCUMENTS, question=ASKED)[1]
        assert again.reused_from == "prompts"


def test_the_same_documents_with_another_question(model: Tiny, tmp_path: Path) -> None:
    """Full prefills share what is the same, and what they share is stored once."""
    with rig(model, prefix_cache=True, pool_tokens=1000, prompts=tmp_path) as running:
        for n in range(4):
            running.answer(VANILLA, DOCUMENTS, question=words(20 + n, 8))
        running.answer(VANILLA, [OTHER], question=ASKED)  # shares no more than S
        settle(running)
        assert stored(running) == 1
    with rig(model, prefix_cache=True, pool_tokens=1000, prompts=tmp_path) as restarted:
        # What the pool can give of S is not preferred to all documents on disk.
        restarted.answer(VANILLA, [OTHER], question=words(41, 40))
        tokens, report = restarted.answer(VANILLA, DOCUMENTS, question=words(30, 8))
        assert report.reused_from == "prompts" and report.reused_tokens == 7 + 90
    with rig(model) as fresh:
        assert fresh.answer(VANILLA, DOCUMENTS, question=words(30, 8))[0] == tokens


def test_a_long_conversation_is_not_written_at_every_turn(model: Tiny, tmp_path: Path) -> None:
    with rig(model, prefix_cache=True, pool_tokens=1500, prompts=tmp_path) as running:
        converse(running, SCOUT, turns=7)
        prompts = running.engine.disk_prefix_cache
        assert prompts is not None
        assert prompts.counts["stored"] == 2


def test_deleted_text_leaves_the_disk(model: Tiny, tmp_path: Path) -> None:
    """Also of prompts that an earlier process has stored, and wherever it stands in them."""
    with rig(model, prefix_cache=True, prompts=tmp_path) as running:
        question = converse(running, VANILLA)
        running.answer(VANILLA, [OTHER], question=words(7, 40))
        running.answer(VANILLA, [OTHER], question=words(7, 40))
        settle(running)
        assert stored(running) == 2
    with rig(model, prefix_cache=True, prompts=tmp_path) as restarted:
        assert restarted.engine.forget([], [tuple(DOCUMENTS[1].ids)])
        assert stored(restarted) == 1 == len(list(tmp_path.rglob("*.safetensors")))
        report = restarted.answer(VANILLA, DOCUMENTS, question=question)[1]
        assert report.reused_tokens == 0
        # It was asked before, but that is forgotten, too: only what comes again is stored.
        settle(restarted)
        assert stored(restarted) == 1
        assert restarted.engine.forget([], [tuple(words(7, 40))])
        assert list(tmp_path.rglob("*.safetensors")) == []


def test_what_is_deleted_while_it_is_copied_or_written_is_not_stored(
    model: Tiny, tmp_path: Path
) -> None:
    with rig(model, prefix_cache=True, prompts=tmp_path) as running:
        for steps in (2, 4, 9):
            running.answer(VANILLA, DOCUMENTS, question=ASKED)
            running.answer(VANILLA, DOCUMENTS, question=ASKED)
            for _ in range(steps):
                running.engine.idle_work.advance()
            running.engine.forget([], [tuple(DOCUMENTS[0].ids)])
            settle(running)
            assert list(tmp_path.rglob("*.safetensors")) == [], steps


def test_another_tenant_or_model_never_continues(model: Tiny, tmp_path: Path) -> None:
    with rig(model, prefix_cache=True, prompts=tmp_path) as running:
        question = converse(running, VANILLA, tenant=TENANT)
    with rig(model, prefix_cache=True, prompts=tmp_path) as restarted:
        for tenant in ("", "other"):
            answered = restarted.answer(VANILLA, DOCUMENTS, question=question, tenant=tenant)
            assert answered[1].reused_tokens == 0
        own = restarted.answer(VANILLA, DOCUMENTS, question=question, tenant=TENANT)[1]
        assert own.reused_from == "prompts"
    with rig(model, prefix_cache=True, prompts=tmp_path, fingerprint="another") as other:
        assert stored(other) == 0
        report = other.answer(VANILLA, DOCUMENTS, question=question, tenant=TENANT)[1]
        assert report.reused_tokens == 0


@METHODS
@pytest.mark.parametrize("damage", ["bytes", "gone"])
def test_a_damaged_prompt_is_computed(
    model: Tiny, tmp_path: Path, method: Method, damage: str
) -> None:
    with rig(model, prefix_cache=True, prompts=tmp_path) as running:
        running.precompute([*DOCUMENTS, OTHER])
        question = converse(running, method)
        (expected, _) = running.answer(method, DOCUMENTS, question=question, prefix_cache=False)
    with rig(model, prefix_cache=True, prompts=tmp_path) as restarted:
        restarted.precompute([*DOCUMENTS, OTHER])
        (file,) = tmp_path.rglob("*.safetensors")
        if damage == "gone":
            file.unlink()
        else:
            data = bytearray(file.read_bytes())
            data[-9] ^= 1
            file.write_bytes(data)
        tokens, report = restarted.answer(method, DOCUMENTS, question=question)
        assert tokens == expected and report.reused_tokens == 0
        if method is SCOUT:
            assert {d.tier for d in report.documents} == {"memory"}
        assert restarted.engine.disk_prefix_cache is not None
        assert restarted.engine.disk_prefix_cache.counts["lost"] == 1 and stored(restarted) == 0


@METHODS
def test_a_late_prompt_is_not_waited_for(model: Tiny, method: Method) -> None:
    tier = FakeTier("prompts", kind="disk")
    with rig(model, prefix_cache=True, pool_tokens=400, prompts=tier, planner=True) as running:
        running.precompute([*DOCUMENTS, OTHER])
        question = converse(running, method)
        push_out(running)
        seem_slow(running)
        assert logits(running, method, question)[1].reused_from == "prompts"
        expected, _ = running.answer(method, DOCUMENTS, question=question, prefix_cache=False)
        push_out(running)
        tier.block("read")
        seem_slow(running)
        waits = running.submit(method, DOCUMENTS, question=question)
        other = running.submit(VANILLA, [OTHER], question=ASKED)
        running.run()
        assert running.tokens(waits) == expected
        assert running.done(waits).report.reused_from == ""
        order = [e.id for e in running.events]
        assert order.index(other) < order.index(waits)  # others compute meanwhile
        tier.release()


def test_the_gates_own_runs_continue_nothing(model: Tiny) -> None:
    """They show what a method computes of a prompt, though its KV is stored."""
    strict = GateSettings(1.0, Bounds(min_checks=4, kl=1e-9, recovery=3))
    tier = FakeTier("prompts", kind="disk")
    with rig(model, prefix_cache=True, pool_tokens=600, prompts=tier, checks=strict) as running:
        running.precompute([*DOCUMENTS, OTHER])
        for _ in range(2):
            running.answer(BROKEN, DOCUMENTS, question=ASKED)
        settle(running)
        assert stored(running) == 1
        for n in range(4):
            ask(running, BROKEN, DOCUMENTS, question=words(60 + n, 8))
        assert state_of(running, BROKEN.name).state == "full_prefill"
        before = state_of(running, BROKEN.name).recovery_checks
        ask(running, BROKEN, DOCUMENTS, question=ASKED)
        assert state_of(running, BROKEN.name).recovery_checks == before + 1
        assert tier.calls["read"] == 0


def test_a_deletion_that_fails_is_asked_again(model: Tiny) -> None:
    tier = FakeTier("prompts", kind="disk")
    with rig(model, prefix_cache=True, prompts=tier) as running:
        question = converse(running, VANILLA)
        tier.fail("delete", TierUnavailable("no"))
        for _ in range(2):
            assert not running.engine.forget([], [tuple(DOCUMENTS[1].ids)])
        answered = running.answer(VANILLA, DOCUMENTS, question=question)[1]
        assert answered.reused_tokens == 0 and len(list(tier.keys())) == 1
        tier.heal()
        assert running.engine.forget([], [tuple(DOCUMENTS[1].ids)])
        assert list(tier.keys()) == []


def test_what_says_so_is_neither_stored_nor_continued(model: Tiny, tmp_path: Path) -> None:
    with rig(model, prefix_cache=True, prompts=tmp_path) as running:
        converse(running, VANILLA, prefix_cache=False)
        assert stored(running) == 0
        question = converse(running, VANILLA)
    with rig(model, prefix_cache=True, prompts=tmp_path) as restarted:
        answered = restarted.answer(VANILLA, DOCUMENTS, question=question, prefix_cache=False)
        assert answered[1].reused_tokens == 0
        # Repaired rows serve no other method.
        assert restarted.answer(PIE, DOCUMENTS, question=question)[1].reused_tokens == 0


def seem_slow(running: Rig) -> None:
    """Makes the planner believe that computing takes seconds, so that reading is worth it."""
    assert running.engine.planner is not None
    for _ in range(60):
        running.engine.planner.compute.add(1e8, 10.0)


def stored(running: Rig) -> int:
    """Number of prompts on disk."""
    assert running.engine.disk_prefix_cache is not None
    entries = running.engine.disk_prefix_cache.stats().usage.entries
    assert entries is not None
    return entries


def test_the_index_finds_the_longest() -> None:
    index: PromptIndex[PromptRecord] = PromptIndex()
    whole = words(1, 400)

    def prompt(tokens: list[int], **facts: object) -> PromptRecord:
        known = {"tenant": "", "lora": "", "method": "m", "exact": True, **facts}
        earlier = PromptRecord(torch.tensor(tokens), len(tokens), 7, 7, **known)  # type: ignore[arg-type]
        index.add(earlier)
        return earlier

    def found(tokens: list[int]) -> tuple[PromptRecord, int] | None:
        return index.find(NewPrompt(torch.tensor(tokens), 7, "", "", "m", full_prefill=True))

    short = prompt(whole[:100])
    long = prompt(whole[:300])
    prompt(whole[:350], tenant="other")
    prompt(whole[:350], lora="other")
    prompt(whole[:350], exact=False, method="other")
    assert found(whole) == (long, 300)
    assert found([*whole[:90], *words(2, 100)])[1] == 90  # type: ignore[index]
    assert found(words(3, 100)) is None
    index.remove(long)
    assert found(whole) == (short, 100)
    index.forget([whole[50:60]])
    assert len(index) == 0 and found(whole) is None
