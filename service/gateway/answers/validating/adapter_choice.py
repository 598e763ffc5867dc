"""Which LoRA adapter answers: the one that the request names, or that of its API key."""

from __future__ import annotations

from service.errors import BoundToAdapter, InvalidRequest
from service.gateway.auth.access import Principal
from service.messages.replies import Ready


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
