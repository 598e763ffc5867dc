"""The experiments: which configurations each of the papers' tables and figures compares.

Every experiment can be run on the samples of every suite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.quality.configuration import Configuration
from service.messages.requests import Method

RATIOS = (0.05, 0.10, 0.15, 0.30)
RATIO = 0.15
CONTEXT_KEPT = 0.17
"""Share of the context that A3(ex) keeps, by Table 3 of its paper."""
EVICTIONS = (
    "streaming_llm", "h2o", "snapkv", "pyramidkv", "ada_snapkv", "ada_pyramidkv", "headkv",
    "gemfilter", "kvec",
)  # fmt: skip
FULL, GUESS = "full prefill", "guess"
OURS = "question_scout"
SAMKV_CHUNK_TOKENS = 192
"""Three of SamKV's blocks; it computes shorter chunks whole."""
RANKED_BY_RATIO = ("cacheblend", "a3", "prophetkv", "infoflow", OURS)
RANDOM = "random_rows"
OURS_WITHOUT: dict[str, dict[str, float]] = {
    "no shift": {"shift": 0.0},
    "evidence of all layers": {"from_depth": 0.0, "to_depth": 1.0},
    "last row only": {"question": 0.0},
}
"""Parts of question_scout that are left out one at a time."""


def fusion(
    prefix_mode: str, chunk_tokens: int, ratios: Sequence[float] = RATIOS
) -> list[Configuration]:
    """A3's Tables 1, 2, 4 and 5: every fusion method, at every ratio if it has one.

    SamKV is left out where chunks are too short to have a middle that it could skip.
    """

    def plain(name: str, method: str, **parameters: Any) -> Configuration:
        return Configuration(name, Method(method, parameters), prefix_mode=prefix_mode, curve=name)

    found = [
        Configuration(FULL, Method("vanilla"), curve=FULL),
        Configuration(GUESS, Method("vanilla"), documents=False, curve=GUESS),
        plain("full_reuse", "full_reuse"),
        plain("pie", "pie"),
        _ranked(RANDOM, RATIO, prefix_mode, ratio=RATIO),
    ]
    for ratio in ratios:
        ends = max(1, round(ratio * chunk_tokens))  # the same share of every chunk as of the prompt
        first, last = ends - ends // 2, ends // 2
        found.append(_ranked("legolink", ratio, prefix_mode, first=first, last=last))
        found += [_ranked(name, ratio, prefix_mode, ratio=ratio) for name in RANKED_BY_RATIO]
    if chunk_tokens > SAMKV_CHUNK_TOKENS:
        found += [plain(f"samkv {u}", "samkv", update=u) for u in ("overwrite", "fusion")]
    return found


def variants(prefix_mode: str) -> list[Configuration]:
    """Ablations: random rows, exact first layers, parts of question_scout, no prefix."""
    full = Configuration(FULL, Method("vanilla"), curve=FULL)
    exact = Method("pie", {"exact_layers": 2})
    pie = Configuration("pie", Method("pie"), prefix_mode=prefix_mode, curve="pie")
    ours = [_ranked(name, RATIO, prefix_mode, ratio=RATIO) for name in ("a3", OURS)]
    found = [full, pie, *ours]
    for name, change in OURS_WITHOUT.items():
        method = Method(OURS, {"ratio": RATIO, **change})
        found.append(Configuration(f"{at(OURS, RATIO)}, {name}", method, prefix_mode=prefix_mode))
    found.append(Configuration("pie, exact layers 0-1", exact, prefix_mode=prefix_mode))
    found += [_ranked(RANDOM, ratio, prefix_mode, ratio=ratio) for ratio in RATIOS]
    if prefix_mode != "none":
        bare = [replace(c, prefix_mode="none", curve="") for c in (pie, *ours)]
        found += [replace(c, name=f"{c.name}, bare chunks") for c in bare]
    return found


def _ranked(curve: str, point: float, prefix_mode: str, **parameters: Any) -> Configuration:
    """One ratio of a method."""
    method = Method(curve, parameters)
    return Configuration(
        at(curve, point), method, prefix_mode=prefix_mode, curve=curve, point=point
    )


def at(name: str, ratio: float) -> str:
    return f"{name} r={ratio:g}"


def extension(prefix_mode: str) -> list[Configuration]:
    """A3's Table 3: fusion methods with and without eviction to 17 % of the context."""
    found = []
    for name, method in (
        (FULL, Method("vanilla")),
        (at("a3", RATIO), Method("a3", {"ratio": RATIO})),
        (at(OURS, RATIO), Method(OURS, {"ratio": RATIO})),
    ):
        mode = "none" if method.name == "vanilla" else prefix_mode
        found.append(Configuration(name, method, prefix_mode=mode))
        for eviction in ("snapkv", "kvec"):
            found.append(
                Configuration(
                    f"{name} (ex: {eviction})",
                    method,
                    Method(eviction),
                    budget_share=CONTEXT_KEPT,
                    prefix_mode=mode,
                )
            )
    return found


def eviction(
    budgets: Sequence[float], *, available: Sequence[str] = EVICTIONS
) -> list[Configuration]:
    """K-VEC's Tables 1, 6 and 7: eviction after a full prefill.

    Args:
        budgets: below 1 a share of the prompt, else tokens.
        available: names of the eviction methods that the model can use.
    """
    found = [Configuration(FULL, Method("vanilla"), curve=FULL)]
    for budget in budgets:
        found += [evicting(name, name, budget) for name in available]
    return found


def evicting(name: str, method: str, budget: float, **parameters: Any) -> Configuration:
    """An eviction method after a full prefill, named with its budget."""
    if budget < 1:
        chosen, share, label = Method(method, parameters), budget, f"{100 * budget:g} %"
    else:
        chosen, share = Method(method, {**parameters, "budget": int(budget)}), None
        label = f"{budget:g}"
    return Configuration(
        f"{name} B={label}",
        Method("vanilla"),
        chosen,
        budget_share=share,
        curve=name,
        point=budget,
    )


def kvec_parts(budget: float) -> list[Configuration]:
    """K-VEC's Table 10 at one budget, without row (f), another criterion for heads."""

    def kvec(name: str, **parameters: Any) -> Configuration:
        return evicting(name, "kvec", budget, **parameters)

    return [
        Configuration(FULL, Method("vanilla"), curve=FULL),
        kvec("kvec"),
        kvec("kvec without head coverage", delta=0),
        kvec("kvec without layer coverage", lam=0.0),
        kvec("kvec without both", delta=0, lam=0.0),
        *(kvec(f"kvec O'={rows}", extended=rows) for rows in (20, 24, 48)),
        *(kvec(f"kvec λ={weight:g}", lam=weight) for weight in (0.1, 0.5, 2.0)),
        *(kvec(f"kvec β={share:g}", beta=share) for share in (0.1, 0.5, 0.75)),
        *(kvec(f"kvec δ={heads}", delta=heads) for heads in (1, 2, 4)),
    ]


def codecs(prefix_mode: str) -> list[Configuration]:
    """Every codec, with three ways to reuse the stored chunks."""
    return list(_codecs(prefix_mode))


def _codecs(prefix_mode: str) -> Iterator[Configuration]:
    yield Configuration(FULL, Method("vanilla"), curve=FULL)
    for name, method in (
        ("pie", Method("pie")),
        (at("a3", RATIO), Method("a3", {"ratio": RATIO})),
        (at(OURS, RATIO), Method(OURS, {"ratio": RATIO})),
    ):
        for codec in ("raw", "int8", "int4", "int2"):
            yield Configuration(
                f"{name}, {codec}", method, codec=codec, prefix_mode=prefix_mode, curve=name
            )
