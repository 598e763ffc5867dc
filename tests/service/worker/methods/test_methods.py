"""Contracts of every file in fusion/ and eviction/: found by name, so a new method tests itself."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kvstitch.service.worker.methods.eviction
import kvstitch.service.worker.methods.fusion
from kvstitch.service.errors import InvalidRequest, InvalidSetting, UnknownMethod
from kvstitch.service.shared.parameters import schema_of
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods import registry
from kvstitch.service.worker.methods.bases.eviction import EvictionMethod
from kvstitch.service.worker.methods.bases.fusion import FusionMethod, Reads
from kvstitch.service.worker.methods.layer_view import LayerView
from kvstitch.service.worker.methods.registry import (
    add_folder,
    describe,
    eviction_methods,
    fusion_methods,
    make_eviction,
    make_fusion,
)
from kvstitch.service.worker.model.model_facts import FlopCount, ModelFacts
from tests.service.worker.tiny import D1, D2, D3, Q, S, Tiny, assert_same, prompt_attention, tiny

pytestmark = pytest.mark.exhaustive

# The contract can be run over files of one's own too.
if own := os.environ.get("KVSTITCH_METHODS_DIR"):
    add_folder(Path(own))
FUSION, EVICTION = fusion_methods(), eviction_methods()


def extremes(methods: dict[str, type[Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every method with defaults, then with each parameter at each end of its range in turn; a
    range without an upper end is tried far beyond any prompt and any machine integer."""
    for name, cls in methods.items():
        yield name, {}
        for field, facts in schema_of(cls).items():
            values: list[Any] = list(facts.get("choices", ()))
            if facts["type"] == "boolean":
                values = [True, False]
            elif facts["type"] == "numbers":
                values = [[facts["le"]], [facts["ge"]] * 3, [0.5, 0.2]]
            elif facts["type"] in ("number", "integer"):
                # Odd, for widths that must be.
                values = [facts["ge"]] if "ge" in facts else [-(2**63) + 1, -(10**6) - 1]
                values += [facts["le"]] if "le" in facts else [10**6 + 1, 2**63 - 1]
            for value in values:
                yield name, {field: value}


def identify(case: tuple[str, dict[str, Any]]) -> str:
    return " ".join([case[0], *(f"{k}={v}" for k, v in case[1].items())])


# A method that holds a part does not run in the dense layer loop: kvstitch-methods tests SamKV.
FACTS = ModelFacts(layers=12, heads=4, kv_heads=2)
DENSE = {name: cls for name, cls in FUSION.items() if cls.reads is not Reads.PARTS}
FUSION_CASES = list(extremes(dict(DENSE)))
EVICTION_CASES = list(extremes(dict(EVICTION)))


@pytest.fixture(params=["llama", "qwen3"])
def model(request: pytest.FixtureRequest) -> Tiny:
    return tiny(request.param, "llama3")


# -- discovery ------------------------------------------------------------------------------------


def test_every_file_is_a_method() -> None:
    """Dropping a file into the folder is all it takes."""
    for package, found in (
        (kvstitch.service.worker.methods.fusion, FUSION),
        (kvstitch.service.worker.methods.eviction, EVICTION),
    ):
        folders = [Path(folder) for folder in package.__path__]
        files = {p.stem for folder in folders for p in folder.glob("*.py")} - {"__init__"}
        assert set(found) >= files  # and those of plugins
    assert {"vanilla", "full_reuse", "pie", "a3"} <= set(FUSION)
    assert "snapkv" in EVICTION


@pytest.mark.parametrize("cls", [*FUSION.values(), *EVICTION.values()], ids=lambda c: c.__module__)
def test_is_a_frozen_dataclass_of_parameters(cls: type[Any]) -> None:
    """Every field is declared with `parameter`, so that it is checked and described."""
    assert issubclass(cls, FusionMethod | EvictionMethod)
    made = cls()
    assert set(schema_of(cls)) == {f.name for f in dataclasses.fields(cls)}
    assert all(facts["doc"] for facts in schema_of(cls).values())
    for field in dataclasses.fields(cls):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, field.default)


def test_describe_says_what_each_is() -> None:
    for methods in (FUSION, EVICTION):
        infos = describe(methods, FACTS)
        assert [info.name for info in infos] == sorted(methods)
        for info in infos:
            assert len(info.doc) > 20
            schema = schema_of(methods[info.name])
            assert set(info.parameters) == set(schema)
            for name, facts in info.parameters.items():
                assert facts["doc"] == schema[name]["doc"]
                assert facts.get("le") == (11 if "layer" in facts else schema[name].get("le"))
        unusable = {info.name for info in infos if info.unavailable}
        assert unusable == ({"headkv"} if methods is EVICTION else set())
        parts = {n for n, cls in methods.items() if getattr(cls, "reads", None) is Reads.PARTS}
        assert {info.name for info in infos if info.sparse} == parts


@pytest.mark.parametrize(("make", "where"), [(make_fusion, "fusion"), (make_eviction, "eviction")])
def test_unknown_method(make: Any, where: str) -> None:
    """The error names the field, the name given and the names known."""
    with pytest.raises(UnknownMethod) as error:
        make("nonsense", {})
    assert error.value.field == f"{where}.method"
    assert "'nonsense'" in error.value.message
    for name in FUSION if where == "fusion" else EVICTION:
        assert name in error.value.message


@pytest.mark.parametrize("name", ["base", "__init__", "", "../pie", "PIE"])
def test_names_that_are_no_method(name: str) -> None:
    for make in (make_fusion, make_eviction):
        with pytest.raises(UnknownMethod):
            make(name, {})


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan"), "0.5", True])
def test_bad_ratio(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"fusion\.ratio must be a number from 0 to 1") as e:
        make_fusion("a3", {"ratio": value})
    assert e.value.field == "fusion.ratio"


@pytest.mark.parametrize("value", [0, -1, 1.5, float("inf"), "10", False, None])
def test_bad_budget(value: Any) -> None:
    with pytest.raises(
        InvalidRequest, match=r"eviction\.budget must be an integer of at least 1"
    ) as error:
        make_eviction("snapkv", {"budget": value})
    assert error.value.field == "eviction.budget"


# -- fusion ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FUSION_CASES, ids=identify)
def test_fusion_is_finite_and_deterministic(model: Tiny, case: tuple[str, dict[str, Any]]) -> None:
    """Same logits twice, with nothing read that nobody wrote (the pool starts as NaN)."""
    method = make_fusion(*case)
    first, second = model.stitch(method), model.stitch(method)
    assert bool(torch.isfinite(first.logits).all())
    assert first.logits.equal(second.logits)
    assert all(bool(torch.isfinite(t).all()) for t in (*first.k, *first.v))
    assert first.logits.shape == (model.decoder.vocabulary,)
    assert first.logits.dtype == torch.float32


@pytest.mark.parametrize("case", FUSION_CASES, ids=identify)
def test_all_uncached_is_vanilla(model: Tiny, case: tuple[str, dict[str, Any]]) -> None:
    """Nothing stored: every row is computed, whatever the method."""
    expected = model.reference.vanilla([*S, *D1, *D2, *D3, *Q])
    ours = model.stitch(make_fusion(*case), uncached=[0, 1, 2, 3])
    assert_same("contract: all uncached", ours, expected)


@pytest.mark.parametrize("case", FUSION_CASES, ids=identify)
def test_no_documents_is_vanilla(model: Tiny, case: tuple[str, dict[str, Any]]) -> None:
    """S is exact, so S ‖ Q is a full prefill; and Q alone too."""
    method = make_fusion(*case)
    expected = model.reference.vanilla([*S, *Q])
    assert_same("contract: no documents", model.stitch(method, documents=[]), expected)
    uncached = model.stitch(method, documents=[], uncached=[0])
    assert_same("contract: no documents, S uncached", uncached, expected)
    bare = model.stitch(method, system=[], documents=[])
    assert_same("contract: nothing but Q", bare, model.reference.vanilla(Q))


@pytest.mark.parametrize("case", FUSION_CASES, ids=identify)
def test_uncached_segments_are_not_read(model: Tiny, case: tuple[str, dict[str, Any]]) -> None:
    """Some segments uncached, one empty: finite, and the uncached rows are among those computed."""
    method = make_fusion(*case)
    ours = model.stitch(method, documents=(D1, [], D2, D3), uncached=[1, 4])
    assert all(bool(torch.isfinite(t).all()) for t in (ours.logits, *ours.k, *ours.v))
    rows = set(ours.result.rows.tolist())
    assert {*range(7, 18), *range(24, 38)} <= rows


# -- eviction -------------------------------------------------------------------------------------


def random_prompt(document: int, seed: int) -> tuple[PromptLayout, Tensor, Tensor]:
    """S 6 ‖ D ‖ Q 7, k `[2, n, 8]`, q `[n, 6, 8]`: two KV heads of three query heads."""
    layout = PromptLayout.of([1] * 6, [[2] * document], [3] * 7, uncached=[False, False])
    source = torch.Generator().manual_seed(seed)
    k = torch.randn(2, layout.tokens, 8, generator=source)
    q = torch.randn(layout.tokens, 6, 8, generator=source)
    return layout, k, q


LAYERS = 3
SCORES = {name: torch.arange(1.0, 19.0).view(3, 6) / 171 for name in ("R", "R2")}


def kept_by(
    method: EvictionMethod, layout: PromptLayout, k: Tensor, q: Tensor
) -> list[list[list[int]]]:
    """Per layer (each the same k and q) and KV head; every query row was computed."""
    rows = layout.all_rows
    counts = FlopCount(tiny("llama").decoder)
    fresh = k.transpose(0, 1)
    kept_before = torch.zeros(layout.tokens, dtype=torch.long)
    out = []
    for layer in range(LAYERS):
        view = LayerView(
            layer=layer,
            layout=layout,
            rows=rows,
            q=q,
            k=k,
            v=k,
            fresh_q=q,
            fresh_k=fresh,
            fresh_v=fresh,
            cached=[None, None],
            scale=8**-0.5,
            rope=tiny("llama").decoder.ropes[0],
            flops=counts,
        )
        prompt = prompt_attention(
            layout,
            k,
            method.observe(view),
            layer=layer,
            layers=LAYERS,
            kept_before=kept_before,
            head_scores=SCORES,
            heads=6,
        )
        kept = method.keep(prompt)
        here = torch.zeros_like(kept_before)
        here[torch.cat(kept)] = 1
        kept_before = kept_before + here
        out.append([head.tolist() for head in kept])
    return out


@pytest.mark.parametrize("case", EVICTION_CASES, ids=identify)
@pytest.mark.parametrize("document", [0, 1, 50])
def test_eviction_keeps_budget_and_what_is_protected(
    case: tuple[str, dict[str, Any]], document: int
) -> None:
    """Ascending indices of the prompt without repeats; what is protected among them; exactly the
    budget in sum over layers and heads (or what is protected where that is more, or everything
    where the prompt is smaller); the same twice; two prompts of different length leave no trace in
    each other."""
    method = make_eviction(*case)
    layout, k, q = random_prompt(document, seed=document)
    if not method.applies(layout):
        return
    kept = kept_by(method, layout, k, q)
    n = layout.tokens
    fixed = set(method.regions(layout)[0].tolist())
    if method.protect:
        assert fixed == {*range(6), *range(n - 7, n)}
    for head in [head for heads in kept for head in heads]:
        assert head == sorted(set(head))
        assert set(head) <= set(range(n))
        assert fixed <= set(head)
    entries = sum(len(head) for heads in kept for head in heads)
    assert entries == LAYERS * 2 * min(n, max(len(fixed), method.budget))
    kept_by(method, *random_prompt(33, seed=5))
    assert kept_by(method, layout, k, q) == kept
    assert isinstance(method.warning(layout), str | None)


def test_sketches_that_no_method_reads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = {name: cls for name, cls in fusion_methods().items() if cls.extra is None}
    monkeypatch.setattr(registry, "fusion_methods", lambda: methods)
    with pytest.raises(InvalidSetting, match="kvstitch-methods"):
        registry.chunk_extra()
