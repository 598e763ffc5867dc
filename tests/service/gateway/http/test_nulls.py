"""An optional field that is null counts as left out: in every body, and in every object of one."""

from __future__ import annotations

import types
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

import kvstitch.service.gateway.http.routes
from kvstitch.service.gateway.http.openapi import examples
from kvstitch.service.gateway.schemas.fields import SentModel
from kvstitch_dify.translation import RetrievalRequest
from kvstitch_mcp.schemas import DocumentsArguments, Places
from kvstitch_messages.schemas import MessagesRequest

Body = type[BaseModel]


def bodies() -> Iterator[tuple[tuple[str, str], Body]]:
    for module in iter_modules(kvstitch.service.gateway.http.routes.__path__):
        router = import_module(f"kvstitch.service.gateway.http.routes.{module.name}").router
        for route in router.routes:
            field = getattr(route, "body_field", None)
            model = None if field is None else field.field_info.annotation
            if isinstance(model, type) and issubclass(model, BaseModel):
                for method in route.methods:
                    yield (method.lower(), route.path), model


def inside(annotation: Any) -> Iterator[Body]:
    """The models that a value may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from inside(field.annotation)
    elif get_origin(annotation) in (list, dict, Union, types.UnionType) or get_args(annotation):
        for part in get_args(annotation):
            yield from inside(part)


BODIES = dict(bodies())
MODELS = {one for body in (*BODIES.values(), RetrievalRequest, DocumentsArguments, Places,
                           MessagesRequest)
          for one in inside(body)}  # fmt: skip


def test_every_object_that_is_sent_takes_nulls() -> None:
    assert len(BODIES) >= 10 and len(MODELS) >= 35
    assert [one.__name__ for one in MODELS if not issubclass(one, SentModel)] == []


@pytest.mark.parametrize("model", sorted(MODELS, key=str))
def test_its_schema_says_so(model: Body) -> None:
    properties = model.model_json_schema().get("properties", {})
    for name, field in model.model_fields.items():
        hidden = "SkipJsonSchema" in repr(field)
        if not field.is_required() and not hidden:
            shown = properties[field.alias or name]
            assert {"type": "null"} in shown.get("anyOf", ()), name


@pytest.mark.parametrize("route", sorted(BODIES))
def test_nulls_change_nothing(route: tuple[str, str]) -> None:
    """Of what is recorded of each route."""
    model, tried = BODIES[route], 0
    for sent in examples()[route].requests.get("application/json", {}).values():
        names = {f.alias or n for n, f in model.model_fields.items() if not f.is_required()}
        nulls = dict.fromkeys(names - sent.keys())
        assert model.model_validate({**nulls, **sent}) == model.model_validate(sent)
        tried += 1
    assert tried
