"""Names of models as OpenAI's clients use them: the served one, and it with a preset.

    kvstitch-demo              the default fusion
    kvstitch-demo:vanilla      that fusion method, with its default parameters

Knows no request and no answer.
"""

from __future__ import annotations

from dataclasses import asdict

from service.errors import ModelNotFound
from service.gateway.schemas import MethodChoice
from service.gateway.schemas.openai import ModelOut
from service.messages import Ready
from service.parameters import check


def listed(model: str, created: int, ready: Ready) -> list[ModelOut]:
    """The served model, then its presets: every fusion method it can be used with."""
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


def preset(name: str | None, model: str, ready: Ready) -> MethodChoice | None:
    """The fusion method that `name` stands for, None where it is the model alone.

    Raises ModelNotFound.
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
