"""Checks a client's choice of methods against those that the worker offers."""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import InvalidRequest, UnknownMethod
from service.gateway.schemas.generate import MethodChoice
from service.messages.replies import MethodInfo
from service.messages.requests import Method
from service.shared.parameters import check


def chosen_method(kind: str, choice: MethodChoice, offered: Sequence[MethodInfo]) -> Method:
    """The chosen method with all its parameters, defaults filled in.

    Args:
        kind: "fusion" or "eviction"; prefixes the field in errors.
        choice: What the client wrote.
        offered: The worker's methods of this kind.

    Raises:
        UnknownMethod: The worker has no such method.
        InvalidRequest: A parameter is wrong, or the method cannot be used with this model.
    """
    info = next((info for info in offered if info.name == choice.method), None)
    if info is None:
        known = ", ".join(sorted(info.name for info in offered))
        raise UnknownMethod(
            f"{kind}.method {choice.method!r} is not known; known methods: {known}",
            field=f"{kind}.method",
        )
    if info.unavailable:
        raise InvalidRequest(info.unavailable, field=f"{kind}.method")
    return Method(info.name, check(info.parameters, choice.parameters, where=kind))


def check_combination(
    fusion: Method, eviction: Method | None, offered: Sequence[MethodInfo]
) -> None:
    """Raise InvalidRequest if the two methods cannot be combined.

    Args:
        fusion: The chosen fusion method.
        eviction: The chosen eviction method, None if there is none.
        offered: The worker's fusion methods.
    """
    sparse = {info.name for info in offered if info.sparse}
    if eviction is not None and fusion.name in sparse:
        raise InvalidRequest(
            f"fusion.method {fusion.name} already holds only part of the documents' KV: leave "
            "eviction out",
            field="eviction.method",
        )
