"""GemFilter (docs/specification.md §2.7): an early layer's choice, then a full prefill of it."""

from __future__ import annotations

import pytest
import torch

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.messages.requests import Method as Named
from kvstitch.service.worker.methods.registry import make_eviction, make_fusion
from kvstitch.service.worker.model.model_facts import FlopCount, ModelFacts, full_prefill
from kvstitch_methods.eviction import GemFilter
from tests.references.eviction import Region, gemfilter, last_row_logits
from tests.service.worker.engines import VANILLA, rig
from tests.service.worker.forward.test_evict import ANSWER, decoded
from tests.service.worker.methods.eviction.harness import (
    LAYERS,
    Shape,
    random_layers,
    shrink,
    view_of,
)
from tests.service.worker.methods.eviction.test_stitched import (
    FUSION,
    SHAPE,
    assert_pool_holds,
    stitched,
)
from tests.service.worker.tiny import D1, D2, D3, Q, Run, S, Tiny, assert_close, tiny

pytestmark = pytest.mark.exhaustive

PROMPT = [*S, *D1, *D2, *D3, *Q]
CHOOSES = 2  # of the tiny models' five layers


def chosen(method: GemFilter, shape: Shape, group: int, seed: int = 0) -> list[int] | None:
    """What `restart` gives at its layer; at every other layer it must give nothing."""
    at = method.chooses_at(LAYERS)
    out = None
    for number, qk in enumerate(random_layers(shape, group, seed)):
        rows = method.restart(view_of(shape.layout, number, qk, LAYERS))
        if number == at:
            out = None if rows is None else rows.tolist()
        else:
            assert rows is None
    return out


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("protect", [True, False])
@pytest.mark.parametrize(("layer", "kernel"), [(0, 5), (3, 1), (2, 9)])
@pytest.mark.parametrize(
    "shape", [Shape(5, 40, 6), Shape(0, 30, 1), Shape(9, 4, 9), Shape(3, 90, 11)]
)
def test_chosen_tokens_are_the_references(
    shape: Shape, layer: int, kernel: int, protect: bool, group: int
) -> None:
    n = shape.tokens
    for budget in (1, 5, shape.system + shape.question + 2, n // 2, n - 1):
        method = GemFilter(budget=budget, protect=protect, layer=layer, kernel=kernel)
        q, k = random_layers(shape, group)[method.chooses_at(LAYERS)]
        region = Region(n, shape.system, shape.question, budget, protect=protect)
        assert chosen(method, shape, group) == gemfilter(last_row_logits(q, k), region, kernel)


@pytest.mark.parametrize(
    ("layer", "layers", "at"),
    [(0, 32, 13), (0, 12, 4), (0, 5, 2), (0, 4, 1), (0, 2, 1), (0, 1, 0), (19, 40, 19), (3, 4, 3)],
)
def test_the_layer_that_chooses(layer: int, layers: int, at: int) -> None:
    """13 of 32 by default, but neither the first (if there is another) nor beyond the last."""
    assert GemFilter(layer=layer).chooses_at(layers) == at


def test_a_layer_that_is_not_there_is_refused() -> None:
    facts = ModelFacts(5, 6, 2)
    GemFilter(layer=4).check(facts)
    with pytest.raises(InvalidRequest, match=r"eviction\.layer must be at most 4 .* not 5") as e:
        GemFilter(layer=5).check(facts)
    assert e.value.field == "eviction.layer"


def test_even_kernel_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"eviction\.kernel must be odd, not 4") as error:
        make_eviction("gemfilter", {"kernel": 4})
    assert error.value.field == "eviction.kernel"


# -- through the layer loop -----------------------------------------------------------------------


@pytest.mark.parametrize("fusion", FUSION)
@pytest.mark.parametrize("protect", [True, False], ids=["protect", "open"])
@pytest.mark.parametrize("budget", [6, 21])
def test_it_is_a_full_prefill_of_what_was_kept(budget: int, protect: bool, fusion: str) -> None:
    """After every fusion method: first logits, the pool's KV, decoding at positions from B on, and
    rows given back. A budget of 6 is below S and Q."""
    model = tiny("qwen3", "yarn")
    made, trace = stitched("qwen3", "yarn", fusion)
    method = GemFilter(budget=budget, protect=protect)
    region = Region(len(PROMPT), len(S), len(Q), budget, protect=protect)
    kept = gemfilter(last_row_logits(trace.q[CHOOSES], trace.k[CHOOSES]), region)
    alone = model.reference.vanilla([PROMPT[t] for t in kept])

    run = model.stitch(made, room=len(ANSWER), eviction=method)
    assert run.result.kept_ids is not None and run.result.kept_ids.tolist() == kept
    assert run.result.rows.tolist() == kept
    assert_close("gemfilter: logits", run.logits, alone.logits[-1])
    done = shrink(model, run, method, len(ANSWER))
    assert done == len(kept) / len(PROMPT)
    everything = [[list(range(len(kept)))] * 2] * 5
    assert_pool_holds(run, alone, everything, len(kept), len(ANSWER))
    run.layout = run.result.layout
    ours = torch.stack(decoded(model, [run], [ANSWER])[0])
    theirs = torch.stack(model.reference.decode(alone, ANSWER))
    assert_close("gemfilter, then decode", ours, theirs)


def test_on_every_family(any_family: Tiny) -> None:
    trace = any_family.reference.vanilla(PROMPT)
    region = Region(len(PROMPT), len(S), len(Q), 20)
    kept = gemfilter(last_row_logits(trace.q[CHOOSES], trace.k[CHOOSES]), region)
    run = any_family.stitch(make_fusion("vanilla", {}), eviction=GemFilter(budget=20))
    expected = any_family.reference.vanilla([PROMPT[t] for t in kept])
    assert_close("gemfilter: logits", run.logits, expected.logits[-1])


def same(model: Tiny, documents: tuple[list[int], ...], budget: int) -> tuple[Run, Run]:
    """With and without GemFilter where it has nothing to leave out."""
    pie = make_fusion("pie", {})
    method = GemFilter(budget=budget)
    run = model.stitch(pie, documents=documents, eviction=method)
    assert run.result.kept_ids is None
    before = run.pool.free_share
    assert shrink(model, run, method, 0) == 1
    assert run.pool.free_share == before
    assert run.sequence.kept_tokens(0) == run.layout.tokens
    return run, model.stitch(pie, documents=documents)


def test_nothing_to_leave_out(model: Tiny) -> None:
    """The prompt fits, and costs nothing more; or S and Q, over the budget, are all there is."""
    for documents, budget in (((D1, D2, D3), SHAPE.tokens), ((D1,), 1000)):
        ours, plain = same(model, documents, budget)
        assert ours.logits.equal(plain.logits)
        assert ours.result.flops == plain.result.flops
    ours, plain = same(model, (), 4)
    assert ours.logits.equal(plain.logits)


def test_its_cost_is_counted(model: Tiny) -> None:
    """Layers before the choosing one, its projections and one row of scores, then B tokens."""
    decoder, n = model.decoder, len(PROMPT)
    count = FlopCount(decoder)
    for layer in range(CHOOSES):
        count.project(layer, n)
        count.attend(n * (n + 1) / 2)
        count.finish(layer, n)
    count.project(CHOOSES, n)
    count.score(n)
    run = model.stitch(make_fusion("vanilla", {}), eviction=GemFilter(budget=20))
    assert run.result.flops == count.total + full_prefill(decoder, 20)


@pytest.mark.parametrize("protect", [True, False])
@pytest.mark.parametrize("fusion", [VANILLA, Named("a3")])
def test_in_the_engine(model: Tiny, fusion: Named, protect: bool) -> None:
    """Greedy answer of the reference on the kept prompt; the report's coverage and kept tokens; the
    pool whole again; and the next request is none the wiser."""
    _, trace = stitched("qwen3", "yarn", fusion.name)
    region = Region(len(PROMPT), len(S), len(Q), 20, protect=protect)
    kept = gemfilter(last_row_logits(trace.q[CHOOSES], trace.k[CHOOSES]), region)
    alone = model.reference.vanilla([PROMPT[t] for t in kept])
    answer = [int(alone.logits[-1].argmax())]
    while len(answer) < 6:
        answer.append(int(model.reference.decode(alone, answer)[-1].argmax()))
    eviction = Named("gemfilter", {"budget": 20, "protect": protect})
    with rig(model) as at:
        at.precompute()
        plain, _ = at.answer(fusion)
        tokens, report = at.answer(fusion, eviction=eviction)
        assert tokens == answer
        assert report.coverage == 20 / len(PROMPT)
        assert report.kept_per_layer == [20.0] * model.decoder.layers
        assert report.prompt_tokens == len(PROMPT)
        assert at.answer(fusion)[0] == plain
        assert at.engine.pool.free_share == 1
