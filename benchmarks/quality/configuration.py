"""What is compared: a fusion method, an eviction method, a codec and a prefix mode, by a name."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from service.records import Method

METHODS_FOLDER = Path(__file__).parent / "methods"
"""Baselines that only benchmarks offer, found as an operator's own methods are."""


@dataclass(frozen=True)
class Configuration:
    """`budget_share`: the eviction's budget as a share of each prompt's tokens, for models whose
    contexts are too short for absolute ones. `documents` off: the question alone, so that what is
    left is guessing."""

    name: str
    fusion: Method
    eviction: Method | None = None
    budget_share: float | None = None
    codec: str = "raw"
    prefix_mode: str = "none"
    documents: bool = True

    @property
    def key(self) -> str:
        """16 hex characters over everything that decides the answer but the code."""
        record = json.dumps({**asdict(self), "name": ""}, sort_keys=True)
        return hashlib.blake2b(record.encode(), digest_size=8).hexdigest()

    def evicting(self, prompt_tokens: int) -> Method | None:
        """The eviction method for a prompt of this length."""
        if self.eviction is None or self.budget_share is None:
            return self.eviction
        budget = max(1, math.ceil(self.budget_share * prompt_tokens))
        return Method(self.eviction.name, {**self.eviction.parameters, "budget": budget})

    def named(self, name: str) -> Configuration:
        return replace(self, name=name)
