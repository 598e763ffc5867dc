"""Three hundred schemas that programs of others have made, in one compressed file.

    python -m tests.service.grammars.real_schemas OPENAPI.json [NAME.json …]

writes it anew: of pydantic models and dataclasses of installed packages, of types of every kind
that pydantic has, and of the component schemas of OpenAPI documents (GitHub's of @octokit/openapi
23.0.2, MIT, and Kubernetes' of kubernetes-validate 1.37, Apache-2.0).
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import lzma
import pkgutil
import random
import sys
import warnings
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

from typing_extensions import TypedDict

FILE = Path(__file__).with_name("real_schemas.json.xz")
PACKAGES = (
    *(
        "openai.types",
        "langchain_core.messages",
        "langchain_core.documents",
        "langchain_core.runnables",
    ),
    *("llama_index.core.schema", "llama_index.core.base", "llama_index.core.chat_engine"),
    *("fastapi.openapi", "langsmith", "huggingface_hub"),
)
MAX_CHARS = 6_000
COUNTS = {"pydantic": 100, "dataclass": 40, "kinds": 60, "openapi": 100}


def read() -> list[dict[str, Any]]:
    """The schemas, each with the `source` that it is from."""
    found: list[dict[str, Any]] = json.loads(lzma.decompress(FILE.read_bytes()))
    return found


def _classes() -> Iterator[tuple[str, type]]:
    for package in PACKAGES:
        try:
            root = import_module(package)
        except ImportError:
            continue
        names = [package]
        names += [
            each.name
            for each in pkgutil.walk_packages(
                getattr(root, "__path__", ()), f"{package}.", lambda n: None
            )
        ]
        for name in sorted(names):
            try:
                module = import_module(name)
            except BaseException:
                continue
            for attribute, value in sorted(vars(module).items()):
                if isinstance(value, type) and value.__module__ == name:
                    yield f"{name}.{attribute}", value


def _of_packages() -> tuple[dict[str, Any], dict[str, Any]]:
    from pydantic import BaseModel, TypeAdapter

    models: dict[str, Any] = {}
    classes: dict[str, Any] = {}
    for name, cls in _classes():
        try:
            if issubclass(cls, BaseModel):
                models[name] = cls.model_json_schema()
            elif dataclasses.is_dataclass(cls):
                classes[name] = TypeAdapter(cls).json_schema()
        except Exception:
            continue
    return models, classes


class _Colour(Enum):
    RED = "red"
    BLUE = "blue"


class _Size(IntEnum):
    SMALL = 1
    LARGE = 2


class _Point(NamedTuple):
    x: int
    y: float


class _Film(TypedDict, total=False):
    title: str
    year: int


def _kinds() -> dict[str, Any]:
    """A model with a field of each kind of type that pydantic knows, and some that hold several."""
    import pydantic as p

    types: dict[str, Any] = {
        "uuid": UUID, "path": Path, "bytes": bytes, "secret": p.SecretStr, "decimal": Decimal,
        "money": Annotated[Decimal, p.Field(max_digits=8, decimal_places=2)],
        "set": set[str], "frozenset": frozenset[int], "tuple": tuple[int, str, bool],
        "tuples": tuple[int, ...], "date": date, "datetime": datetime, "time": time,
        "delta": timedelta, "url": p.HttpUrl, "any_url": p.AnyUrl, "name": Literal["a", "b", 3],
        "enum": _Colour, "int_enum": _Size, "ipv4": ipaddress.IPv4Address,
        "ipv6": ipaddress.IPv6Address, "ip_any": p.IPvAnyAddress, "map": dict[str, int],
        "enum_map": dict[_Colour, float], "int_map": dict[int, str], "named": _Point,
        "typed": _Film, "optional": int | None, "union": int | str | list[float], "any": Any,
        "json": p.Json, "base64": p.Base64Str, "file": p.FilePath, "aware": p.AwareDatetime,
        "past": p.PastDate, "positive": p.PositiveInt, "strict": p.StrictBool,
        "short": Annotated[str, p.Field(min_length=2, max_length=5)],
        "pattern": Annotated[str, p.Field(pattern=r"^[A-Z]{2}\d{3}$")],
        "some": Annotated[list[int], p.Field(min_length=1, max_length=3)],
        "least_map": Annotated[dict[str, int], p.Field(min_length=2)],
        "multiple": Annotated[int, p.Field(multiple_of=5)],
        "range": Annotated[float, p.Field(gt=0, lt=1)],
        "enum_set": set[_Colour], "literal_set": set[Literal["x", "y", "z"]], "bools": set[bool],
        "byte_size": p.ByteSize, "dsn": p.PostgresDsn, "nested": dict[str, list[dict[str, int]]],
    }  # fmt: skip
    made = {
        f"kind {name}": p.create_model("Model", value=(kind, ...)) for name, kind in types.items()
    }
    made |= {
        f"optional {name}": p.create_model("Model", value=(kind | None, None))
        for name, kind in list(types.items())[:12]
    }

    class Cat(p.BaseModel):
        kind: Literal["cat"]
        lives: int = 9

    class Dog(p.BaseModel):
        model_config = p.ConfigDict(extra="forbid")
        kind: Literal["dog"]
        name: str

    class Owner(p.BaseModel):
        """Of pets."""

        pet: Annotated[Cat | Dog, p.Field(discriminator="kind")]
        others: list[Cat | Dog] = []

    class Tree(p.BaseModel):
        label: str
        children: list[Tree] = []

    class Open(p.BaseModel):
        model_config = p.ConfigDict(extra="allow")
        a: int

    made |= {"discriminated": Owner, "recursive": Tree, "extra": Open, "forbidding": Dog}
    return {
        name: model.model_json_schema(mode=mode)
        for name, model in made.items()
        for mode in ("validation",)
    } | {
        f"{name}, serialised": made[name].model_json_schema(mode="serialization")
        for name in ("kind decimal", "kind money", "kind bytes", "kind delta")
    }


def _of_documents(files: list[Path]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        schemas = document.get("components", {}).get("schemas") or document.get("definitions", {})
        for name, schema in schemas.items():
            closed = _with_parts(schema, schemas)
            if closed is not None:
                found[f"{file.stem} {name}"] = closed
    return found


def _with_parts(schema: Any, parts: dict[str, Any]) -> dict[str, Any] | None:
    """A schema with those that it refers to, as programs send it."""
    needed: dict[str, Any] = {}
    waiting = [schema]
    while waiting and len(needed) < 30:
        text = json.dumps(waiting.pop())
        for name, part in parts.items():
            if name not in needed and any(
                f'"#/{root}/{name}"' in text for root in ("components/schemas", "definitions")
            ):
                needed[name] = part
                waiting.append(part)
    whole = json.dumps({**schema, **({"$defs": needed} if needed else {})})
    for root in ("components/schemas", "definitions"):
        whole = whole.replace(f'"#/{root}/', '"#/$defs/')
    made: dict[str, Any] = json.loads(whole)
    return made if not waiting else None


def main() -> None:
    warnings.simplefilter("ignore")
    models, classes = _of_packages()
    sources = {
        "pydantic": models,
        "dataclass": classes,
        "kinds": _kinds(),
        "openapi": _of_documents([Path(name) for name in sys.argv[1:]]),
    }
    chosen, seen = [], set()
    for source, schemas in sources.items():
        names = sorted(schemas)
        random.Random(0).shuffle(names)
        taken = 0
        for name in names:
            text = json.dumps(schemas[name])
            parts = schemas[name].get("properties") or schemas[name].keys() & {
                "anyOf",
                "allOf",
                "oneOf",
                "enum",
                "$ref",
            }
            if taken == COUNTS[source] or len(text) > MAX_CHARS or text in seen or not parts:
                continue
            seen.add(text)
            taken += 1
            chosen.append({"source": source, "name": name, "schema": schemas[name]})
        print(source, len(schemas), taken)
    FILE.write_bytes(lzma.compress(json.dumps(chosen).encode(), preset=9))
    print(len(chosen), FILE.stat().st_size)


if __name__ == "__main__":
    main()
