"""What is compared, and the rows of the two tables (SamKV's paper, tables 3 and 4)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from benchmarks.quality.multi_infllm import MultiInfLLM
from service.worker.api import (
    A3,
    CacheBlend,
    FullReuse,
    LegoLink,
    Pie,
    QuestionScout,
    SamKV,
    Vanilla,
)
from service.worker.methods.api import DenseMethod

RATIO = 0.15
"""Of recomputed tokens, for every method that has a choice; what papers use."""


@dataclass(frozen=True)
class Compared:
    """A method over chunks stored in one way. `block`: tokens of SamKV's blocks."""

    name: str
    method: DenseMethod | SamKV | MultiInfLLM
    block: int
    prefix_mode: str

    @property
    def key(self) -> str:
        """16 hex characters over everything that decides the result but the code."""
        kind = type(self.method).__module__
        text = f"{kind} {self.method!r} {self.block} {self.prefix_mode}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Ablated:
    """A row of the second table: which parts are on (None: does not apply)."""

    compared: Compared
    selection: bool | None = None
    bias: bool | None = None
    recompute: bool | None = None
    note: str = ""


def methods(*, block: int, document_tokens: int, prefix_mode: str) -> list[Compared]:
    """Rows of the first table; full prefill first. SamKV keeps as many blocks as the paper's rule
    asks for; its documents are so short that the service's `max_kept` would always bind."""
    ends = max(1, round(RATIO * document_tokens / 2))
    infllm = MultiInfLLM(block=block, init=block, local=2 * block)
    samkv = SamKV(max_kept=1.0, max_recomputed=RATIO)
    made: dict[str, DenseMethod | SamKV | MultiInfLLM] = {
        "Recompute": Vanilla(),
        "Reuse": FullReuse(),
        "PIE": Pie(),
        "Multi-InfLLM": infllm,
        "CacheBlend 15 %": CacheBlend(RATIO),
        f"EPIC (LegoLink {ends} + {ends})": LegoLink(ends, ends),
        "A3 15 %": A3(RATIO),
        "question_scout 15 %": QuestionScout(RATIO),
        "SamKV-overwrite": samkv,
        "SamKV-fusion": replace(samkv, update="fusion"),
    }
    return [Compared(name, method, block, prefix_mode) for name, method in made.items()]


def ablation(*, block: int, prefix_mode: str) -> list[Ablated]:
    """Rows of the second table: the paper's, with fusion, then other bounds than the first
    table's."""

    def row(
        selection: bool, bias: bool, recompute: bool, note: str = "", **more: object
    ) -> Ablated:
        method = SamKV(
            **{
                "update": "fusion",
                "selection": selection,
                "personalised_bias": bias,
                "recompute": recompute,
                "max_kept": 1.0,
                "max_recomputed": RATIO,
                **more,
            }  # type: ignore[arg-type]
        )
        compared = Compared("SamKV", method, block, prefix_mode)
        return Ablated(compared, selection, bias if selection else None, recompute, note)

    full = Compared("Recompute", Vanilla(), block, prefix_mode)
    return [
        Ablated(full),
        row(False, True, False),
        row(False, True, True),
        row(True, False, False),
        row(True, True, False),
        row(True, False, True),
        row(True, True, True),
        row(False, True, True, "all ends recomputed", max_recomputed=1.0),
        row(True, False, True, "all ends recomputed", max_recomputed=1.0),
        row(True, True, True, "all ends recomputed", max_recomputed=1.0),
        row(True, True, True, "all ends, overwritten", max_recomputed=1.0, update="overwrite"),
        row(True, True, True, "max_kept 0.19, as served", max_kept=SamKV().max_kept),
    ]
