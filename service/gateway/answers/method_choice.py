"""Checks a client's choice of methods against what the worker offers. Knows no method by name."""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import InvalidRequest, UnknownMethod
from service.gateway.schemas import MethodChoice
from service.messages import Method, MethodInfo
from service.parameters import check


def chosen(kind: str, choice: MethodChoice, offered: Sequence[MethodInfo]) -> Method:
    """The method with all its parameters. `kind` is "fusion" or "eviction".

    Raises UnknownMethod or InvalidRequest, naming the field and what is accepted.
    """
    found = next((info for info in offered if info.name == choice.method), None)
    if found is None:
        known = ", ".join(sorted(info.name for info in offered))
        raise UnknownMethod(
            f"{kind}.method {choice.method!r} is not known; known methods: {known}",
            field=f"{kind}.method",
        )
    if found.unavailable:
        raise InvalidRequest(found.unavailable, field=f"{kind}.method")
    return Method(found.name, check(found.parameters, choice.parameters, where=kind))


def check_together(fusion: Method, eviction: Method | None, offered: Sequence[MethodInfo]) -> None:
    """Raises InvalidRequest if these two cannot be combined."""
    sparse = {info.name for info in offered if info.sparse}
    if eviction is not None and fusion.name in sparse:
        raise InvalidRequest(
            f"fusion.method {fusion.name} already holds only part of the documents' KV: leave "
            "eviction out",
            field="eviction.method",
        )
