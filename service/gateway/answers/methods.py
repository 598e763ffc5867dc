"""Which methods and which LoRA adapter answer, and how far the gate trusts the methods.

A client's choice is checked against what the worker offers.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import BoundToAdapter, InvalidRequest, UnknownMethod
from service.gateway.auth.access import Principal
from service.gateway.schemas.admin import Gate, GateMethod
from service.gateway.schemas.generate import MethodChoice
from service.gateway.worker_client.protocol import Worker
from service.messages.replies import GateStates, MethodInfo, Ready
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


def chosen_adapter(asked: str | None, principal: Principal, ready: Ready) -> str:
    """The adapter's name; "" for the base model.

    Args:
        asked: What the request names; None: nothing.
        principal: Its sender. A key that is bound to an adapter uses no other.
        ready: What the worker serves.

    Raises:
        InvalidRequest: There is no such adapter.
        BoundToAdapter: The API key is bound to another one.
    """
    bound = principal.adapter
    if bound and asked not in (None, bound):
        raise BoundToAdapter(
            f"the API key {principal.key_id} is bound to the adapter {bound!r}: leave adapter out, "
            "or use another key",
            field="adapter",
        )
    name = asked if asked is not None else bound
    if name and name not in {each.name for each in ready.adapters}:
        names = ", ".join(sorted(each.name for each in ready.adapters)) or "none"
        of_key = f" (that of the API key {principal.key_id})" if bound else ""
        raise InvalidRequest(
            f"there is no adapter {name!r}{of_key}: this service has {names}", field="adapter"
        )
    return name


async def gate_states(worker: Worker, sample: float) -> Gate:
    """How far each fusion method is trusted.

    Args:
        worker: Asked for its states.
        sample: The share of answers that is checked, for the reply.

    Raises:
        WorkerUnavailable: The worker is not ready.
    """
    return _gate(sample, await worker.gate())


async def reset_gate(worker: Worker, sample: float, method: str | None) -> Gate:
    """Forget the checks of one fusion method, or of all if `method` is None.

    Raises:
        UnknownMethod: The worker has no such fusion method.
        WorkerUnavailable: The worker is not ready.
    """
    known = sorted(info.name for info in worker.require().fusion)
    if method is not None and method not in known:
        raise UnknownMethod(
            f"method {method!r} is no fusion method; known methods: {', '.join(known)}",
            field="method",
        )
    return _gate(sample, await worker.gate(reset=method or ""))


def _gate(sample: float, reply: GateStates) -> Gate:
    methods = [GateMethod.model_validate(state, from_attributes=True) for state in reply.states]
    return Gate(sample=sample if reply.on else 0.0, methods=methods)
