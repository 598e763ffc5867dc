"""Operations of every method against an exact count from token sets (docs/specification.md §4)."""

from __future__ import annotations

import pytest

from kvstitch.service.worker.methods.bases.fusion import FusionMethod
from kvstitch.service.worker.methods.fusion.a3 import Method as A3
from kvstitch.service.worker.methods.fusion.cacheblend import Method as CacheBlend
from kvstitch.service.worker.methods.fusion.legolink import Method as LegoLink
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.methods.fusion.question_scout import Method as QuestionScout
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from kvstitch.service.worker.model.model_facts import FlopCount, chunk_prefill, full_prefill
from tests.references.fusion import (
    Shape,
    always_computed,
    cacheblend_computed,
    finished_rows,
    flops,
    legolink_rows,
)
from tests.references.question_scout import Scout, scout_rows
from tests.service.worker.tiny import D1, D2, D3, Q, S, Tiny

IDS = [*S, *D1, *D2, *D3, *Q]
LAST = [len(IDS) - 1]


def shape_of(model: Tiny) -> Shape:
    config = model.model.config
    return Shape(
        config.hidden_size,
        config.intermediate_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        model.decoder.head_dim,
        config.vocab_size,
    )


def computed_by(model: Tiny, method: FusionMethod) -> list[list[int]]:
    """Rows whose QKV each layer computes, by the reference."""
    reference, prompt, layers = model.reference, model.prompt(), model.decoder.layers
    every, fixed = list(range(len(IDS))), always_computed(prompt)
    match method:
        case Vanilla():
            return [every] * layers
        case Pie():
            return [fixed] * layers
        case LegoLink():
            rows = legolink_rows(prompt, method.first, method.last)
        case QuestionScout():
            rows = scout_rows(reference, prompt, Scout(method.ratio))
        case CacheBlend():
            return cacheblend_computed(reference, prompt, [method.ratio])
        case A3():
            chosen = sorted({*reference.a3_selected(prompt, method.ratio), *fixed})
            return [every] * 2 + [chosen] * (layers - 2)
        case _:
            raise AssertionError(method)
    return [sorted({*rows, *fixed})] * layers


METHODS = [
    Vanilla(),
    Pie(),
    LegoLink(first=2, last=1),
    CacheBlend(ratio=0.2),
    A3(ratio=0.2),
    QuestionScout(ratio=0.3),
]


def first_pass(model: Tiny, rows: list[int], layers: int) -> float:
    """It scores whole rectangles; its last layer ends with the scores."""
    shape = shape_of(model)
    query_width = shape.heads * shape.head_dim
    linear = flops(shape, [rows] * layers, [[]] * layers) - 2 * shape.hidden * shape.vocabulary
    mlp = 2 * query_width * shape.hidden + 6 * shape.hidden * shape.mlp
    pairs = len(rows) * len(IDS)
    return linear + (layers - 1) * len(rows) * mlp + (2 * layers - 1) * pairs * 2 * query_width


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__module__.rpartition(".")[2])
def test_flops_are_the_exact_count(any_family: Tiny, method: FusionMethod) -> None:
    computed = computed_by(any_family, method)
    finished = finished_rows(computed, LAST)
    question = list(range(len(IDS) - len(Q), len(IDS)))
    scored = [question] if isinstance(method, A3) else []
    expected: float = flops(shape_of(any_family), computed, finished, scored)
    if isinstance(method, QuestionScout):
        expected += first_pass(any_family, question, 4)
    assert any_family.stitch(method).result.flops == pytest.approx(expected, rel=1e-9)


def test_full_prefill_is_vanilla(any_family: Tiny) -> None:
    ours = any_family.stitch(Vanilla()).result.flops
    assert full_prefill(any_family.decoder, len(IDS)) == pytest.approx(ours, rel=1e-9)


def test_a_chunk_alone_is_a_full_prefill_without_its_end(any_family: Tiny) -> None:
    """The last layer stops at keys and values, and there is no first token."""
    rest = FlopCount(any_family.decoder)
    rest.attend(len(IDS))
    rest.finish(any_family.decoder.layers - 1, 1)
    rest.unembed(1)
    alone = chunk_prefill(any_family.decoder, len(IDS))
    assert alone + rest.total == pytest.approx(full_prefill(any_family.decoder, len(IDS)), rel=1e-9)
