"""A configuration to compare: a fusion method, an eviction method, a codec, a prefix mode."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kvstore.format.codecs import codec_names
from service.errors import InvalidRequest
from service.messages.requests import Method
from service.worker.api import add_folder, make_eviction, make_fusion
from service.worker.methods.api import ModelFacts, Reads

METHODS_FOLDER = Path(__file__).parent / "methods"
"""Plugin methods that are only for benchmarks: baselines."""
PREFIX_MODES = ("none", "bos", "system")
_LONG = 1 << 20
_COMMAS = re.compile(r",(?![^\[]*\])")  # not those within a JSON list


@dataclass(frozen=True)
class Configuration:
    """One way to answer.

    Attributes:
        name: unique within an experiment.
        fusion: fusion method with parameters.
        eviction: eviction method with parameters, or None.
        budget_share: the eviction's budget as a share of each prompt's tokens, for models whose
            contexts are too short for absolute budgets.
        codec: that chunks are stored with.
        prefix_mode: what chunks are precomputed behind.
        documents: False to ask the question without documents, which measures guessing.
        curve: name of the line in figures; configurations of a curve differ only in `point`.
        point: position on the curve: a ratio or a budget.
    """

    name: str
    fusion: Method
    eviction: Method | None = None
    budget_share: float | None = None
    codec: str = "raw"
    prefix_mode: str = "none"
    documents: bool = True
    curve: str = ""
    point: float | None = None

    @property
    def key(self) -> str:
        """16 hex characters that identify everything but the code that the answer depends on."""
        record = asdict(replace(self, name="", curve="", point=None))
        text = json.dumps(record, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def full(self) -> bool:
        """Whether this is full prefill of the whole prompt without eviction."""
        return self.fusion.name == "vanilla" and self.eviction is None and self.documents

    def evicting(self, prompt_tokens: int) -> Method | None:
        """The eviction method with its budget for a prompt of this length."""
        if self.eviction is None or self.budget_share is None:
            return self.eviction
        budget = max(1, math.ceil(self.budget_share * prompt_tokens))
        return Method(self.eviction.name, {**self.eviction.parameters, "budget": budget})

    def named(self, name: str) -> Configuration:
        return replace(self, name=name)

    def check(self, model: ModelFacts) -> None:
        """Makes sure that the model can use the methods.

        Raises:
            UnknownMethod: there is no such method.
            InvalidRequest: the methods or their parameters do not fit the model.
        """
        add_folder(METHODS_FOLDER)
        fusion = make_fusion(self.fusion.name, self.fusion.parameters)
        fusion.check(model)
        _among(self.codec, codec_names(), "codec")
        _among(self.prefix_mode, PREFIX_MODES, "prefix_mode")
        asked = self.evicting(_LONG)
        if asked is None:
            return
        make_eviction(asked.name, asked.parameters).check(model)
        if fusion.reads is Reads.PARTS:
            raise InvalidRequest(
                f"{self.fusion.name} already holds only part of the documents' KV: "
                "no eviction goes with it",
                field="eviction.method",
            )


def parse_method(text: str) -> Method:
    """Reads a method as written on the command line: `a3:ratio=0.15,selection_layer=2`.

    Values are JSON; what is not JSON is text.

    Raises:
        InvalidRequest: the text does not have this form.
    """
    name, _, rest = text.partition(":")
    parameters: dict[str, Any] = {}
    for part in _COMMAS.split(rest) if rest else ():
        key, equals, value = part.partition("=")
        if not key or not equals:
            raise InvalidRequest(
                f"{text!r}: write a method as name:parameter=value,parameter=value", field=name
            )
        try:
            parameters[key] = json.loads(value)
        except json.JSONDecodeError:
            parameters[key] = value
    return Method(name, parameters)


def _among(name: str, known: Sequence[str], field: str) -> None:
    if name not in known:
        raise InvalidRequest(f"{field} is one of {', '.join(known)}, not {name!r}", field=field)
