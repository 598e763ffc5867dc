"""Eviction after a prefill and decoding after it, against masked attention on the full cache
(docs/specification.md §2.9) and the paper's A3(ex) (§1.6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kvstitch.service.worker.forward.decode import decode_step
from kvstitch.service.worker.kv.pool import KVPool, SequenceKV
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.eviction import EvictionMethod, PromptAttention
from kvstitch.service.worker.methods.bases.fusion import FusionMethod
from kvstitch.service.worker.methods.eviction.snapkv import Method as SnapKV
from kvstitch.service.worker.methods.fusion.a3 import Method as A3
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from tests.references.prefill import Trace, snapkv_kept
from tests.service.worker.held import held, moved
from tests.service.worker.tiny import D1, D2, D3, Q, Run, S, Tiny, assert_close, evicted, tiny

pytestmark = pytest.mark.exhaustive

ANSWER = [30, 60, 90, 12, 77]


@dataclass
class Answering:
    """The least a decode step needs of a sequence."""

    kv: SequenceKV
    prompt: int
    tokens: list[int]
    lora: str = ""

    @property
    def position(self) -> int:
        return self.prompt + len(self.tokens) - 1


def decoded(model: Tiny, runs: list[Run], answers: list[list[int]]) -> list[list[Tensor]]:
    """Logits after each token, all sequences in one batch per step; answers equally long."""
    decoder, tokens = model.decoder, sum(int(run.sequence.capacity.max()) for run in runs)
    pool = KVPool(
        decoder.layers, decoder.kv_heads, decoder.head_dim, tokens,
        dtype=decoder.dtype, device=decoder.device,
    )  # fmt: skip
    sequences = [Answering(moved(run.sequence, pool), run.layout.tokens, []) for run in runs]
    out: list[list[Tensor]] = [[] for _ in runs]
    for step in range(len(answers[0])):
        for sequence, answer in zip(sequences, answers, strict=True):
            sequence.tokens.append(answer[step])
        for i, row in enumerate(decode_step(model.decoder, sequences)):
            out[i].append(row)
    return out


def methods(model: Tiny) -> Iterator[tuple[FusionMethod, Trace]]:
    prompt = model.prompt()
    yield Vanilla(), model.reference.vanilla(prompt.ids)
    yield Pie(), model.reference.pie(prompt)
    yield A3(ratio=0.15), model.reference.a3(prompt, 0.15)


def test_decode_without_eviction(any_model: Tiny) -> None:
    """Tokens fed one by one at positions n, n + 1, …: the reference's logits over the same cache;
    after a full prefill also those of transformers on the longer prompt."""
    for method, trace in methods(any_model):
        run = any_model.stitch(method, room=len(ANSWER))
        ours = torch.stack(decoded(any_model, [run], [ANSWER])[0])
        claim = "decode, nothing evicted"
        # Some CPUs' fp32 products add in another order for other numbers of rows (1.02e-4).
        theirs = torch.stack(any_model.reference.decode(trace, ANSWER))
        assert_close(claim, ours, theirs, atol=2e-4)
        if isinstance(method, Vanilla):
            ids = torch.tensor([[*S, *D1, *D2, *D3, *Q, *ANSWER]])
            theirs = any_model.model(ids).logits[0, -len(ANSWER) :]
            assert_close("decode is transformers", ours, theirs)


@pytest.mark.parametrize("budget", [12, 20, 30, 37])
def test_snapkv_then_decode(any_family: Tiny, budget: int) -> None:
    """After vanilla, PIE and A3 (that is A3(ex)): kept sets are those of the reference's window
    attention, and decoding equals the reference with everything else masked out."""
    snapkv = SnapKV(budget=budget, window=4)
    for method, trace in methods(any_family):
        run = any_family.stitch(method, room=len(ANSWER), eviction=snapkv)
        before = run.logits.clone()
        evicted(any_family, run, snapkv, len(ANSWER))
        assert run.result.logits.equal(before)  # token 1 is the fusion method's own
        visible = []
        for layer in range(any_family.decoder.layers):
            kept = snapkv_kept(
                trace.q[layer],
                trace.k[layer],
                system=len(S),
                question=len(Q),
                budget=budget,
                window=4,
                kernel=7,
            )
            seen = torch.zeros(any_family.decoder.kv_heads, trace.n, dtype=torch.bool)
            for head, index in enumerate(kept):
                seen[head, index] = True
            visible.append(seen)
            assert_kept_are(run, layer, trace, kept)
        ours = torch.stack(decoded(any_family, [run], [ANSWER])[0])
        expected = torch.stack(any_family.reference.decode(trace, ANSWER, visible))
        assert_close("snapkv, then decode", ours, expected)


def assert_kept_are(run: Run, layer: int, trace: Trace, kept: list[list[int]]) -> None:
    """The pool holds the reference's entries for these tokens, in order."""
    for head, ((k, v), index) in enumerate(zip(held(run.sequence, layer), kept, strict=True)):
        assert_close("snapkv: kept K", k, trace.k[layer][index, head])
        assert_close("snapkv: kept V", v, trace.v[layer][index, head])


def test_memory_is_the_budget(model: Tiny) -> None:
    """Pool rows held after eviction: budget + room per layer and head, exactly."""
    run = model.stitch(Pie(), room=6, eviction=SnapKV(budget=20))
    evicted(model, run, SnapKV(budget=20), 6)
    for layer in range(model.decoder.layers):
        assert run.sequence.kept_tokens(layer) == 20
        assert int(run.sequence.capacity[layer].sum()) == model.decoder.kv_heads * 26
    total = run.pool.tokens
    assert run.pool.free_share == pytest.approx(1 - 26 / total)
    run.sequence.release()
    assert run.pool.free_share == 1


def test_budget_that_fits_changes_nothing(model: Tiny) -> None:
    """n <= budget: bit for bit the answer without eviction."""
    plain = model.stitch(Pie(), room=5)
    method = SnapKV(budget=plain.layout.tokens)
    kept = model.stitch(Pie(), room=5, eviction=method)
    evicted(model, kept, method, 5)
    a, b = decoded(model, [plain], [ANSWER])[0], decoded(model, [kept], [ANSWER])[0]
    assert all(x.equal(y) for x, y in zip(a, b, strict=True))


@dataclass(frozen=True)
class Ragged(EvictionMethod):
    """Head h of layer l keeps its own, different number of document tokens."""

    def applies(self, layout: PromptLayout) -> bool:
        return True

    def keep(self, prompt: PromptAttention) -> list[Tensor]:
        layout = prompt.layout
        documents = range(len(S), layout.question_start)
        fixed = [*range(len(S)), *range(layout.question_start, layout.tokens)]
        return [
            torch.tensor(sorted([*fixed, *list(documents)[:: 2 + h + prompt.layer]]))
            for h in range(prompt.k.shape[0])
        ]


def test_unequal_lengths_per_head(any_family: Tiny) -> None:
    """What Ada-KV and HeadKV need: heads and layers of different lengths decode as masked ones."""
    run = any_family.stitch(Pie(), room=len(ANSWER), eviction=Ragged())
    evicted(any_family, run, Ragged(), len(ANSWER))
    visible = []
    for layer in range(any_family.decoder.layers):
        seen = torch.ones(any_family.decoder.kv_heads, run.layout.tokens, dtype=torch.bool)
        for h in range(len(seen)):
            seen[h, len(S) : -len(Q)] = False
            seen[h, len(S) : -len(Q)][:: 2 + h + layer] = True
        visible.append(seen)
        assert len(set(run.sequence.length[layer].tolist())) > 1
    trace = any_family.reference.pie(any_family.prompt())
    ours = torch.stack(decoded(any_family, [run], [ANSWER])[0])
    expected = torch.stack(any_family.reference.decode(trace, ANSWER, visible))
    assert_close("ragged heads, then decode", ours, expected)


def test_a_batch_decodes_as_its_sequences_do_alone() -> None:
    """Continuous batching: three sequences of different lengths, one evicted, one ragged."""
    model = tiny("qwen2", "llama3")
    shapes = [(D1, D2, D3), (D2,), (D3, D1)]
    answers = [ANSWER, ANSWER[::-1], [4, 5, 6, 7, 8]]
    evictions = [SnapKV(budget=20), None, Ragged()]

    def prepared(i: int) -> Run:
        method = evictions[i]
        run = model.stitch(Pie(), documents=shapes[i], room=5, eviction=method)
        if method is not None:
            evicted(model, run, method, 5)
        return run

    together = decoded(model, [prepared(i) for i in range(3)], answers)
    for i in range(3):
        alone = decoded(model, [prepared(i)], [answers[i]])[0]
        assert_close("batch is alone", torch.stack(together[i]), torch.stack(alone), 1e-4)
