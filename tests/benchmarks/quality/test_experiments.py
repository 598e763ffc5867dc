"""The configurations of the experiments: told apart, accepted by the demo model, comparable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.quality import experiments
from benchmarks.quality.configuration import Configuration, parse_method
from benchmarks.quality.report.plan import EXPERIMENTS, QUICK, SMOKED, Setting, usable
from service.errors import InvalidRequest, UnknownMethod
from service.messages.requests import Method
from service.worker.methods.api import ModelFacts
from tests.benchmarks.quality.methods import folders_restored

FACTS = ModelFacts(12, 4, 2)
with folders_restored():
    EVICTIONS, NOTES = usable(FACTS)
SETTING = Setting("system", 48, (0.15, 0.25, 0.4, 0.6), EVICTIONS)
ALL = {**EXPERIMENTS, "quick": QUICK, "smoke": SMOKED}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("setting", [SETTING, Setting("none", 512, (128, 256), EVICTIONS)])
def test_configurations_are_told_apart(name: str, setting: Setting) -> None:
    made = ALL[name].configurations(setting)
    assert made[0].full
    assert len({c.name for c in made}) == len({c.key for c in made}) == len(made)
    for configuration in made:
        configuration.check(FACTS)


def test_the_same_is_measured_once() -> None:
    """What two experiments share has one key, whatever its name."""
    fusion, codecs = (
        {c.key for c in ALL[name].configurations(SETTING)} for name in ("fusion", "codecs")
    )
    assert len(fusion & codecs) == 4  # full prefill, and raw PIE, A3, our own


def test_headkv_needs_a_calibrated_model() -> None:
    assert "headkv" not in EVICTIONS
    assert len(EVICTIONS) == len(experiments.EVICTIONS) - 1
    assert "calibration" in NOTES[0]


def test_legolink_recomputes_as_much_of_a_chunk() -> None:
    made = {c.name: c.fusion.parameters for c in experiments.fusion("system", 48)}
    ends = {r: made[f"legolink r={r:g}"] for r in experiments.RATIOS}
    assert [p["first"] + p["last"] for p in ends.values()] == [2, 5, 7, 14]
    assert all(0 <= p["first"] - p["last"] <= 1 for p in ends.values())


def test_samkv_only_where_chunks_have_a_middle() -> None:
    assert not [c for c in experiments.fusion("none", 192) if c.fusion.name == "samkv"]
    assert len([c for c in experiments.fusion("none", 512) if c.fusion.name == "samkv"]) == 2


def test_budgets_are_shares_or_tokens() -> None:
    share = experiments.evicting("snapkv", "snapkv", 0.15)
    assert share.name == "snapkv B=15 %"
    assert share.evicting(101) == Method("snapkv", {"budget": 16})
    tokens = experiments.evicting("kvec", "kvec", 128, delta=0)
    assert tokens.evicting(101) == Method("kvec", {"delta": 0, "budget": 128})


def test_a_key_covers_what_decides_the_answer() -> None:
    base = Configuration("a", Method("a3"))
    assert replace(base, name="b", curve="c", point=0.1).key == base.key
    others = [
        replace(base, fusion=Method("a3", {"ratio": 0.1})),
        replace(base, eviction=Method("snapkv")),
        replace(base, eviction=Method("snapkv"), budget_share=0.1),
        replace(base, codec="int8"),
        replace(base, prefix_mode="system"),
        replace(base, documents=False),
    ]
    assert len({base.key, *(c.key for c in others)}) == 7


# -- as written on a command line -----------------------------------------------------------------


def test_methods_are_parsed() -> None:
    assert parse_method("a3") == Method("a3")
    assert parse_method("a3:ratio=0.15,selection_layer=2") == Method(
        "a3", {"ratio": 0.15, "selection_layer": 2}
    )
    assert parse_method("cacheblend:metric=K,schedule=[0.3,0.2]") == Method(
        "cacheblend", {"metric": "K", "schedule": [0.3, 0.2]}
    )
    assert parse_method("snapkv:protect=false").parameters == {"protect": False}
    for wrong in ("a3:ratio", "a3:=1", "a3:ratio=1,"):
        with pytest.raises(InvalidRequest, match="name:parameter=value"):
            parse_method(wrong)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (Configuration("", Method("a4")), "a4"),
        (Configuration("", Method("a3", {"ratio": 2})), "ratio"),
        (Configuration("", Method("a3", {"share": 0.1})), "share"),
        (Configuration("", Method("a3", {"selection_layer": 40})), "selection_layer"),
        (Configuration("", Method("a3"), Method("b")), "'b'"),
        (Configuration("", Method("a3"), Method("snapkv", {"budget": 0})), "budget"),
        (Configuration("", Method("a3"), Method("headkv")), "calibration"),
        (Configuration("", Method("a3"), codec="int3"), "int3"),
        (Configuration("", Method("a3"), prefix_mode="all"), "all"),
        (Configuration("", Method("samkv"), Method("snapkv")), "eviction"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(wrong: Configuration, told: str) -> None:
    with pytest.raises((InvalidRequest, UnknownMethod), match=told):
        wrong.check(FACTS)
