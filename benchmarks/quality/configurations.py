"""The configurations that are compared on a real model, where each one costs seconds a prompt.

Three ratios for every method that has one, question_scout's and the other methods' that rank by the
question, and what chunks are precomputed behind.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from kvstitch.service.worker.api import (
    A3,
    CacheBlend,
    FullReuse,
    LegoLink,
    Pie,
    QuestionScout,
    Vanilla,
    make_fusion,
)
from kvstitch.service.worker.methods.api import (
    DenseMethod,
    PrefillResult,
    PromptLayout,
    Reads,
    share_of,
    union,
)
from kvstitch_tune.case import Case

RATIO = 0.15
"""The papers' ratio."""
RATIOS = (0.05, RATIO, 0.3)
RIVALS = {
    "prophetkv": {},
    "infoflow": {},
    "fusionrag": {},
    "agentkvshift": {},
    "relaxkv": {"keys": "anchors"},
}
"""Published in 2026, each with its own parameters; at the ratio of the others' where it counts the
same, and RelaxKV, which computes three times its ratio, at a third of it."""


@dataclass(frozen=True)
class Configuration:
    """A method with parameters, and how chunks are stored.

    Attributes:
        family: name of the method, such as a3.
        method: with its parameters.
        amount: how much is recomputed, such as "r=0.15".
        variant: what else differs from the family's standard.
        prefix_mode: what chunks are precomputed behind.
        codec: that chunks are stored with.
        adapter: fingerprint of the LoRA adapter that documents but the first are computed with.
    """

    family: str
    method: DenseMethod
    amount: str = ""
    variant: str = ""
    prefix_mode: str = "system"
    codec: str = "raw"
    adapter: str = ""

    @property
    def name(self) -> str:
        codec = "" if self.codec == "raw" else self.codec
        adapted = f"adapter {self.adapter[:6]}" if self.adapter else ""
        parts = (self.family, self.variant, self.amount, self.prefix_mode, codec, adapted)
        return " ".join(part for part in parts if part)

    @property
    def key(self) -> str:
        """16 hex characters that identify parameters, storage and the code of the method's files.

        Comments and the engine's code are not included.
        """
        text = f"{self.method!r} {self.prefix_mode} {self.codec} {_code(type(self.method))}"
        text += self.adapter
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def run(self, case: Case) -> PrefillResult:
        return case.prefill(self.method)

    @property
    def reads_cache(self) -> bool:
        return self.method.reads is not Reads.NOTHING


def _code(kind: type[DenseMethod]) -> str:
    """Code of the files that define a method's classes."""
    own = [of.__module__ for of in kind.__mro__ if of.__module__ not in ("builtins", "typing")]
    files = {sys.modules[name].__file__ for name in own}
    return "".join(_parsed(file) for file in sorted(filter(None, files)))


@cache
def _parsed(file: str) -> str:
    """A file's code without comments and docstrings, which hours of measuring do not depend on."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        for name, body in ast.iter_fields(node):
            if isinstance(body, list):
                setattr(node, name, [each for each in body if not _is_text(each)])
    return ast.dump(tree)


def _is_text(node: object) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@dataclass(frozen=True)
class RandomRows(DenseMethod):
    """Recomputes ⌊ratio · n⌋ random document tokens, the same ones for the same prompt."""

    ratio: float
    seed: int = 0

    def start_rows(self, layout: PromptLayout) -> Tensor:
        candidates = layout.cached_document_rows
        source = torch.Generator().manual_seed(self.seed + int(layout.ids.sum()))
        ranks = torch.randperm(layout.tokens, generator=source).to(layout.ids.device).float()
        order = ranks[candidates].argsort(descending=True)
        return union(candidates[order[: share_of(layout, self.ratio)]], layout.question_rows)


def real() -> list[Configuration]:
    """Full prefill first; the others by family, and by what they cost."""
    return [
        Configuration("full prefill", Vanilla(), prefix_mode="none"),
        Configuration("full_reuse", FullReuse(), prefix_mode="none"),
        Configuration("pie", Pie(), prefix_mode="none"),
        Configuration("pie", Pie(), prefix_mode="bos"),
        Configuration("pie", Pie()),
        Configuration("random rows", RandomRows(RATIO), "r=0.15"),
        Configuration("legolink", LegoLink(4, 4), "k=4"),
        Configuration("legolink", LegoLink(32, 32), "k=32"),
        *(Configuration("a3", A3(ratio), f"r={ratio:g}") for ratio in RATIOS),
        Configuration("a3", A3(RATIO, selection_layer=8), "r=0.15", "layer 8"),
        *(Configuration("cacheblend", CacheBlend(ratio), f"r={ratio:g}") for ratio in RATIOS),
        *(_scout(QuestionScout(ratio)) for ratio in RATIOS),
        *_rivals(),
        *_storage(),
    ]


def behind(modes: Iterable[str]) -> list[Configuration]:
    """What is measured with chunks precomputed behind other documents.

    Args:
        modes: names of the prompts' own ways to choose these (`Prompt.behind`).
    """
    return [replace(c, prefix_mode=mode) for mode in modes for c in _compared()]


def _compared() -> Iterator[Configuration]:
    yield Configuration("pie", Pie())
    yield Configuration("a3", A3(RATIO), f"r={RATIO:g}")
    yield Configuration("cacheblend", CacheBlend(RATIO), f"r={RATIO:g}")
    yield Configuration("legolink", LegoLink(9, 9), "k=9")  # 15 % of eight passages of 120 tokens
    yield from _rivals()
    for ratio in RATIOS:
        yield _scout(QuestionScout(ratio))
    for codec in ("int8", "k8v8", "k8v4", "int4"):
        yield replace(_scout(QuestionScout(RATIO)), codec=codec)


def _rivals() -> Iterator[Configuration]:
    for name, parameters in RIVALS.items():
        ratio = 0.05 if name == "relaxkv" else RATIO
        method = make_fusion(name, {"ratio": ratio, **parameters})
        assert isinstance(method, DenseMethod)
        yield Configuration(name, method, f"r={ratio:g}")


def _storage() -> Iterator[Configuration]:
    """What chunks are precomputed behind, and what they are stored as."""
    scout = QuestionScout(RATIO)
    for prefix in ("none", "bos"):
        yield Configuration("question_scout", scout, "r=0.15", "", prefix)
    for codec in ("int8", "int4", "int2"):
        yield Configuration("pie", Pie(), codec=codec)
        yield Configuration("question_scout", scout, "r=0.15", codec=codec)


def _scout(method: QuestionScout) -> Configuration:
    return Configuration("question_scout", method, f"r={method.ratio:g}")
