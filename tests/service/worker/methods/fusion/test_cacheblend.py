"""CacheBlend against the reference (docs/specification.md §1.3, T1, T3)."""

from __future__ import annotations

import pytest

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.worker.methods.fusion.cacheblend import Method as CacheBlend
from kvstitch.service.worker.methods.fusion.pie import Method as Pie
from kvstitch.service.worker.methods.registry import make_fusion
from kvstitch.service.worker.model.model_facts import ModelFacts
from tests.references.fusion import cacheblend, cacheblend_selected
from tests.service.worker.methods.fusion.rows import document_rows
from tests.service.worker.tiny import D1, D2, D3, EDGES, Q, S, Tiny, assert_close, assert_same

pytestmark = pytest.mark.exhaustive

IDS = [*S, *D1, *D2, *D3, *Q]


@pytest.mark.parametrize("metric", ["V", "K"])
@pytest.mark.parametrize("ratio", [0.05, 0.15, 0.5])
def test_is_the_reference(any_model: Tiny, metric: str, ratio: float) -> None:
    """Rows, logits and KV at every layer."""
    prompt = any_model.prompt()
    ours = any_model.stitch(CacheBlend(ratio=ratio, metric=metric))
    selected = cacheblend_selected(any_model.reference, prompt, [ratio], metric=metric)
    assert document_rows(ours) == selected[-1]
    expected = cacheblend(any_model.reference, prompt, [ratio], metric=metric)
    assert_same("cacheblend", ours, expected)


def test_the_metrics_choose_differently(model: Tiny) -> None:
    """Or the comparison above would not tell V from K."""
    chosen = [document_rows(model.stitch(CacheBlend(ratio=0.2, metric=m))) for m in ("V", "K")]
    assert chosen[0] != chosen[1]


def test_ratio_one_is_full_prefill(any_model: Tiny) -> None:
    """docs/specification.md T1."""
    expected = any_model.reference.vanilla(IDS)
    assert_same("cacheblend, ratio 1", any_model.stitch(CacheBlend(ratio=1)), expected)


def test_ratio_zero_is_pie_with_two_exact_layers(any_family: Tiny) -> None:
    ours = any_family.stitch(CacheBlend(ratio=0))
    assert_close("cacheblend 0", ours.logits, any_family.stitch(Pie(exact_layers=2)).logits)


@pytest.mark.parametrize("metric", ["V", "K"])
@pytest.mark.parametrize("layer", [2, 3, 4])
def test_other_check_layers(any_family: Tiny, layer: int, metric: str) -> None:
    prompt = any_family.prompt()
    ours = any_family.stitch(CacheBlend(ratio=0.3, check_layer=layer, metric=metric))
    expected = cacheblend(any_family.reference, prompt, [0.3], check_layer=layer, metric=metric)
    assert_same("cacheblend, check layer", ours, expected)


@pytest.mark.parametrize(
    "schedule", [(0.6, 0.4, 0.2), (0.5, 0.5), (0.4,), (1.0, 0.1), (0.6, 0.5, 0.4, 0.3, 0.2, 0.1)]
)
@pytest.mark.parametrize("metric", ["V", "K"])
def test_gradual_filtering(any_family: Tiny, schedule: tuple[float, ...], metric: str) -> None:
    """Ranked again at every layer of the schedule, also a schedule longer than the model."""
    prompt = any_family.prompt()
    ours = any_family.stitch(CacheBlend(schedule=schedule, metric=metric))
    expected = cacheblend(any_family.reference, prompt, schedule, metric=metric)
    assert_same("cacheblend, schedule", ours, expected)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("schedule", [(), (0.7, 0.3)])
def test_edges(any_family: Tiny, edge: str, schedule: tuple[float, ...]) -> None:
    """Orders, repetitions, empty, tiny and uncached segments. Uncached rows are not counted."""
    system, documents, uncached = EDGES[edge]
    method = CacheBlend(ratio=0.3, schedule=schedule)
    ours = any_family.stitch(method, system, documents, uncached=uncached)
    prompt = any_family.prompt(system, documents, uncached=uncached)
    expected = cacheblend(any_family.reference, prompt, schedule or [0.3])
    assert_same("cacheblend, edges", ours, expected)


def test_bad_parameters() -> None:
    """The message names the parameter and its range."""
    with pytest.raises(InvalidRequest, match=r"schedule must not increase") as error:
        make_fusion("cacheblend", {"schedule": [0.1, 0.2]})
    assert error.value.field == "fusion.schedule"
    with pytest.raises(InvalidRequest, match=r"schedule\[1\] must be a number from 0 to 1"):
        make_fusion("cacheblend", {"schedule": [0.5, -1]})
    with pytest.raises(InvalidRequest, match=r"must be a list of numbers"):
        make_fusion("cacheblend", {"schedule": 0.5})
    with pytest.raises(InvalidRequest, match=r"one of V, K"):
        make_fusion("cacheblend", {"metric": "Q"})
    facts = ModelFacts(layers=12, heads=4, kv_heads=2)
    make_fusion("cacheblend", {"check_layer": 11}).check(facts)
    with pytest.raises(InvalidRequest, match=r"at most 11") as error:
        make_fusion("cacheblend", {"check_layer": 12}).check(facts)
    assert error.value.field == "fusion.check_layer"
