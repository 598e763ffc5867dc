"""A configuration to try: fusion method, prefix mode, codec and eviction, by their names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.worker.api import make_eviction, make_fusion
from service.worker.methods.api import EvictionMethod, FusionMethod

Parameters = tuple[tuple[str, Any], ...]
"""Names and values of a method's parameters; those left out have the method's defaults."""

FULL_PREFILL = "vanilla"


@dataclass(frozen=True)
class Candidate:
    """One configuration.

    Attributes:
        method: name of the fusion method.
        parameters: of the fusion method.
        prefix_mode: what chunks are precomputed behind.
        codec: that chunks are stored with.
        eviction: name of the eviction method; empty: nothing is evicted.
        eviction_parameters: of the eviction method.
    """

    method: str
    parameters: Parameters = ()
    prefix_mode: str = "none"
    codec: str = "raw"
    eviction: str = ""
    eviction_parameters: Parameters = ()

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Candidate:
        """What `fields` wrote."""
        fusion, eviction = dict(fields["fusion"]), dict(fields["eviction"] or {})
        return cls(
            fusion.pop("method"),
            _parameters(fusion),
            fields["prefix_mode"],
            fields["codec"],
            eviction.pop("method", ""),
            _parameters(eviction),
        )

    @property
    def key(self) -> str:
        """16 hex characters that identify it, with the values of all parameters."""
        text = (
            f"{self.fusion_method()!r} {self.prefix_mode} {self.codec} {self.eviction_method()!r}"
        )
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def label(self) -> str:
        """For people: `a3 ratio=0.15 · system · int8`; what is usual is left out."""
        parts = [_call(self.method, self.parameters), self.prefix_mode]
        if self.codec != "raw":
            parts.append(self.codec)
        if self.eviction:
            parts.append(_call(self.eviction, self.eviction_parameters))
        return " · ".join(parts)

    @property
    def fields(self) -> dict[str, Any]:
        """As requests and settings name them; ready for JSON."""
        eviction = {"method": self.eviction, **dict(self.eviction_parameters)}
        return {
            "fusion": {"method": self.method, **dict(self.parameters)},
            "prefix_mode": self.prefix_mode,
            "codec": self.codec,
            "eviction": eviction if self.eviction else None,
        }

    def fusion_method(self) -> FusionMethod:
        """The method.

        Raises:
            UnknownMethod: there is none of this name.
            InvalidRequest: a parameter is wrong.
        """
        return make_fusion(self.method, dict(self.parameters))

    def eviction_method(self) -> EvictionMethod | None:
        """The eviction method, None if nothing is evicted; raises as `fusion_method` does."""
        return (
            make_eviction(self.eviction, dict(self.eviction_parameters)) if self.eviction else None
        )


def _parameters(values: Mapping[str, Any]) -> Parameters:
    return tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in values.items())


def _call(name: str, parameters: Parameters) -> str:
    written = (f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
               for key, value in parameters)  # fmt: skip
    return " ".join([name, *written])
