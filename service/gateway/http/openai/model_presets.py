"""Model names for OpenAI's clients: the served model, alone or with a preset.

kvstitch-demo              the default fusion method
kvstitch-demo:vanilla      this fusion method, with its default parameters
"""

from __future__ import annotations

from dataclasses import asdict

from service.errors import ModelNotFound
from service.gateway.schemas import MethodChoice
from service.gateway.schemas.openai.models import ModelOut
from service.messages import Ready
from service.parameters import check


def list_models(model: str, created: int, ready: Ready) -> list[ModelOut]:
    """The served model, then one preset per fusion method that can be used with it."""
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
    return [plain, *presets]


def preset_fusion(name: str | None, model: str, ready: Ready) -> MethodChoice | None:
    """The fusion method that a model name stands for; None for the model alone.

    Args:
        name: As the client sent it; None: nothing was sent.
        model: The served model's name.
        ready: What the worker offers.

    Raises:
        ModelNotFound: There is no such model or preset.
    """
    if name is None or name == model:
        return None
    base, _, method = name.rpartition(":")
    if base != model or method not in {i.name for i in ready.fusion if not i.unavailable}:
        raise ModelNotFound(
            f"there is no model {name!r}: this service has {model}, also as {model}:METHOD; "
            "GET /v1/models lists them",
            field="model",
        )
    return MethodChoice(method=method)
