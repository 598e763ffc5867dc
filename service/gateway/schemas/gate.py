"""Requests and responses of /admin/gate."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from service.gateway.schemas.fields import StrictModel
from service.messages.reports import GateStateName


class GateReset(StrictModel):
    """POST /admin/gate/reset."""

    method: str | None = Field(
        None, max_length=128, description="a fusion method, with any parameters; null: all"
    )


class GateMethod(BaseModel):
    """One fusion method with its parameters. `checks` are the last ones of what is used;
    `recovery_…` those of the step below, returned to after `recovery_needed` good ones."""

    fusion: dict[str, Any]
    state: GateStateName
    used: dict[str, Any]
    why: str
    for_s: float
    checks: int
    agreement: float | None
    mean_kl: float | None
    recovery_checks: int
    recovery_agreement: float | None
    recovery_kl: float | None
    recovery_needed: int
    trips: int


class Gate(BaseModel):
    """How methods stand at the correctness gate, latest asked for last. `sample`: the share of
    answers that is checked; 0: there is no gate."""

    sample: float
    methods: list[GateMethod]
