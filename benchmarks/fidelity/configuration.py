"""What is compared: a method with its parameters, over chunks stored in one way."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from benchmarks.fidelity.case import Case, Recipe
from service.worker.fusion.base import FusionMethod
from service.worker.prefill import PrefillResult


@dataclass(frozen=True)
class Configuration:
    """`family` is what the method is called (a3, cacheblend, …); `variant` tells apart what differs
    in more than how much is recomputed, so family, variant, prefix mode and codec name a curve
    whose points differ in cost (`amount`: "r=0.15")."""

    family: str
    method: FusionMethod | Recipe
    amount: str = ""
    variant: str = ""
    prefix_mode: str = "system"
    codec: str = "raw"

    @property
    def curve(self) -> str:
        codec = "" if self.codec == "raw" else self.codec
        parts = (self.family, self.variant, self.prefix_mode, codec)
        return " ".join(part for part in parts if part)

    @property
    def name(self) -> str:
        codec = "" if self.codec == "raw" else self.codec
        parts = (self.family, self.variant, self.amount, self.prefix_mode, codec)
        return " ".join(part for part in parts if part)

    @property
    def key(self) -> str:
        """16 hex characters over everything that decides the result but the code."""
        kind = type(self.method)
        text = f"{kind.__module__}.{self.method!r} {self.prefix_mode} {self.codec}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def run(self, case: Case) -> PrefillResult:
        if isinstance(self.method, FusionMethod):
            return case.prefill(self.method)
        return self.method.run(case)

    @property
    def reads_cache(self) -> bool:
        return not isinstance(self.method, FusionMethod) or self.method.reads_cache
