"""Model names for OpenAI's clients: the served model or a LoRA adapter, alone or with a preset.

kvstitch-demo              the default fusion method
kvstitch-demo:vanilla      this fusion method, with its default parameters
legal, legal:vanilla       the same with the adapter named legal
"""

from __future__ import annotations

from dataclasses import asdict

from service.errors import ModelNotFound
from service.gateway.schemas.generate import MethodChoice
from service.gateway.schemas.openai.common import ModelOut
from service.messages.replies import Ready
from service.shared.parameters import check


def list_models(model: str, created: int, ready: Ready, bound: str = "") -> list[ModelOut]:
    """Return the served model, one preset per fusion method that can be used with it, the adapters.

    Args:
        model: The served model's name.
        created: Unix seconds.
        ready: What the worker offers.
        bound: The only adapter that the sender may use; "": all.
    """
    plain = ModelOut(id=model, created=created, fusion=None, details=asdict(ready.model))
    presets = [
        ModelOut(
            id=f"{model}:{info.name}",
            created=created,
            fusion={"method": info.name, **check(info.parameters, {}, where="fusion")},
            details=None,
        )
        for info in ready.fusion
        if not info.unavailable
    ]
    adapters = [
        ModelOut(id=each.name, created=created, parent=model, details=asdict(each))
        for each in ready.adapters
        if bound in ("", each.name)
    ]
    return [plain, *presets, *adapters]


def named_model(
    name: str | None, model: str, ready: Ready
) -> tuple[str | None, MethodChoice | None]:
    """Return the adapter and the fusion method that a model name stands for, None for none.

    Args:
        name: As the client sent it; None: nothing was sent.
        model: The served model's name.
        ready: What the worker offers.

    Raises:
        ModelNotFound: There is no such model or preset.
    """
    if name is None or name == model:
        return None, None
    adapters = [each.name for each in ready.adapters]
    if name in adapters:
        return name, None
    base, _, method = name.rpartition(":")
    known = method in {info.name for info in ready.fusion if not info.unavailable}
    if not known or base not in (model, *adapters):
        names = ", ".join((model, *adapters))
        raise ModelNotFound(
            f"there is no model {name!r}: this service has {names}, also as NAME:METHOD; "
            "GET /v1/models lists them",
            field="model",
        )
    return None if base == model else base, MethodChoice(method=method)
