"""Every eviction method after every fusion method on tiny models (docs/specification.md §2.9): what
the pool holds and gives back, the first token, decoding against masked attention on the reference's
cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from kvstitch.service.worker.methods.bases.eviction import EvictionMethod
from kvstitch.service.worker.methods.bases.fusion import FusionMethod
from kvstitch.service.worker.methods.registry import make_eviction, make_fusion
from tests.references.eviction import Kept
from tests.references.fusion import cacheblend, legolink
from tests.references.prefill import Prompt, Reference, Trace
from tests.references.question_scout import question_scout
from tests.service.worker.forward.test_evict import ANSWER, decoded
from tests.service.worker.held import held
from tests.service.worker.methods.eviction.harness import EXPECTED, Case, Shape, head_scores, shrink
from tests.service.worker.tiny import D1, D2, D3, Q, Run, S, Tiny, assert_close, tiny

pytestmark = pytest.mark.exhaustive

SHAPE = Shape(len(S), len([*D1, *D2, *D3]), len(Q))
COMPACTING = sorted(EXPECTED)

FUSION: dict[str, tuple[dict[str, Any], Callable[[Reference, Prompt], Trace]]] = {
    "vanilla": ({}, lambda r, p: r.vanilla(p.ids)),
    "full_reuse": ({}, lambda r, p: r.full_reuse(p)),
    "pie": ({}, lambda r, p: r.pie(p)),
    "a3": ({}, lambda r, p: r.a3(p, 0.15)),
    "cacheblend": ({}, lambda r, p: cacheblend(r, p, [0.15])),
    "legolink": ({"first": 2, "last": 1}, lambda r, p: legolink(r, p, 2, 1)),
    "question_scout": ({}, lambda r, p: question_scout(r, p)),
}


@cache
def stitched(family: str, rope: str, fusion: str) -> tuple[FusionMethod, Trace]:
    given, trace = FUSION[fusion]
    model = tiny(family, rope)
    return make_fusion(fusion, given), trace(model.reference, model.prompt())


def expected(model: Tiny, trace: Trace, name: str, method: EvictionMethod) -> Kept:
    """The reference's kept sets on the reference's own attention; rows that a pass did not compute
    are NaN there."""
    rows = [torch.nonzero(x.isfinite().all(-1))[:, 0].tolist() for x in trace.hidden]
    scores = head_scores(model.decoder.layers, model.decoder.heads)
    region = SHAPE.region(method)
    return EXPECTED[name](
        Case(method, region, trace.attention, rows, scores, model.decoder.kv_heads)
    )


def assert_pool_holds(run: Run, trace: Trace, kept: Kept, entries: int, room: int) -> None:
    """The reference's entries for these tokens in order, `entries` on average over layers and
    heads, each with `room` for more, and not a row beyond that."""
    rows = 0
    for layer, heads in enumerate(kept):
        pairs = zip(held(run.sequence, layer), heads, strict=True)
        for head, ((k, v), index) in enumerate(pairs):
            assert_close("eviction: kept K", k, trace.k[layer][index, head])
            assert_close("eviction: kept V", v, trace.v[layer][index, head])
        capacity = run.sequence.capacity[layer].tolist()
        assert capacity == [len(index) + room for index in heads]
        rows += sum(capacity)
    every = len(kept) * len(kept[0])
    assert rows == every * (room + entries)
    assert run.pool.free_share == pytest.approx(1 - rows / (every * run.pool.tokens))


def check(model: Tiny, rope: str, fusion: str, name: str, method: EvictionMethod) -> None:
    made, trace = stitched(model.model.config.model_type, rope, fusion)
    run = model.stitch(made, room=len(ANSWER), eviction=method)
    assert run.logits.equal(model.stitch(made).logits)  # token 1 is the fusion method's own
    kept = expected(model, trace, name, method)
    done = shrink(model, run, method, len(ANSWER))
    entries = max(method.budget, SHAPE.system + SHAPE.question if method.protect else 0)
    assert_pool_holds(run, trace, kept, entries, len(ANSWER))
    somewhere = {t for heads in kept for head in heads for t in head}
    assert done == pytest.approx(len(somewhere) / SHAPE.tokens)
    visible = []
    for heads in kept:
        seen = torch.zeros(len(heads), SHAPE.tokens, dtype=torch.bool)
        for head, index in enumerate(heads):
            seen[head, index] = True
        visible.append(seen)
    ours = torch.stack(decoded(model, [run], [ANSWER])[0])
    masked = torch.stack(model.reference.decode(trace, ANSWER, visible))
    assert_close("evicted, then decode", ours, masked, 2e-4)  # logits of up to 10 in fp32
    run.sequence.release()
    assert run.pool.free_share == 1


@pytest.mark.parametrize("fusion", FUSION)
@pytest.mark.parametrize("name", COMPACTING)
@pytest.mark.parametrize("protect", [True, False], ids=["protect", "open"])
def test_after_every_fusion_method(name: str, fusion: str, protect: bool) -> None:
    method = make_eviction(name, {"budget": 21, "protect": protect})
    check(tiny("qwen3", "yarn"), "yarn", fusion, name, method)


@pytest.mark.parametrize("name", COMPACTING)
@pytest.mark.parametrize("budget", [4, 16, 37])
def test_on_every_family(any_family: Tiny, name: str, budget: int) -> None:
    """Below S and Q, in the middle, all but one."""
    check(any_family, "llama3", "vanilla", name, make_eviction(name, {"budget": budget}))
