"""Finds fusion and eviction methods: each is one file named after it, with a class `Method`, in
this package, in an operator's folder (`<folder>/fusion/*.py`, `<folder>/eviction/*.py`), or
named by a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import kvstitch.service.worker.methods.eviction as eviction_package
import kvstitch.service.worker.methods.fusion as fusion_package
from kvstitch.service.errors import InvalidRequest, InvalidSetting, UnknownMethod
from kvstitch.service.messages.replies import OfferedMethod
from kvstitch.service.plugins import hooks, load_object
from kvstitch.service.shared.parameters import check, for_model, schema_of
from kvstitch.service.worker.methods.bases.eviction import EvictionMethod
from kvstitch.service.worker.methods.bases.fusion import FusionMethod, Reads
from kvstitch.service.worker.methods.layer_view import ChunkExtra
from kvstitch.service.worker.model.model_facts import ModelFacts


def add_folder(folder: Path) -> None:
    """Find methods in this folder too, unless the package has one of the same name; its files
    run with the worker's rights. Raises InvalidSetting if there is no such folder."""
    if not folder.is_dir():
        raise InvalidSetting(f"methods_dir {folder} is not a folder")
    for package in (fusion_package, eviction_package):
        place = str(folder.resolve() / package.__name__.rpartition(".")[2])
        if place not in package.__path__:
            package.__path__.append(place)


def fusion_methods() -> dict[str, type[FusionMethod]]:
    own = _found(fusion_package.__name__, tuple(fusion_package.__path__))
    return {**_of_plugins("fusion_methods"), **own}


def eviction_methods() -> dict[str, type[EvictionMethod]]:
    own = _found(eviction_package.__name__, tuple(eviction_package.__path__))
    return {**_of_plugins("eviction_methods"), **own}


def make_fusion(name: str, parameters: Mapping[str, Any]) -> FusionMethod:
    """Return the fusion method with these parameters; raises UnknownMethod or InvalidRequest."""
    made: FusionMethod = _make("fusion", fusion_methods(), name, parameters)
    return made


def make_eviction(name: str, parameters: Mapping[str, Any]) -> EvictionMethod:
    """Return the eviction method with these parameters; raises as `make_fusion`."""
    made: EvictionMethod = _make("eviction", eviction_methods(), name, parameters)
    return made


def chunk_extra() -> ChunkExtra:
    """Return what a method needs beside every chunk; InvalidSetting if no method needs anything."""
    for cls in fusion_methods().values():
        if cls.extra is not None:
            return cls.extra
    raise InvalidSetting(
        "KVSTITCH_SKETCHES is set, and no method that is installed reads sketches: install "
        "kvstitch-methods (plugins/methods), or leave the setting out"
    )


def reads_whole_chunks(fusion: str) -> bool:
    """Return whether a fusion method is known and reads whole chunks, so that prefetching helps
    it."""
    cls = fusion_methods().get(fusion)
    return cls is not None and cls.reads is Reads.CHUNKS


def describe(methods: Mapping[str, type[Any]], model: ModelFacts) -> list[OfferedMethod]:
    """Return descriptions of methods, with the parameters that the served model allows."""
    return [_describe(name, cls, model) for name, cls in sorted(methods.items())]


def _describe(name: str, cls: type[Any], model: ModelFacts) -> OfferedMethod:
    unavailable = ""
    try:
        made = cls()
        made.fit(model, name) if isinstance(made, FusionMethod) else made.check(model)
    except InvalidRequest as error:
        # If only a parameter's default does not fit this model, the method itself is available.
        unavailable = error.message if (error.field or "").endswith(".method") else ""
    doc = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    schema = for_model(schema_of(cls), model.layers, stateful=model.stateful)
    holds_part = getattr(cls, "reads", None) is Reads.PARTS
    return OfferedMethod(
        name=name, doc=doc, parameters=schema, unavailable=unavailable, sparse=holds_part
    )


@cache  # every request asks, and listing folders takes longer than checking its parameters
def _found(package: str, folders: tuple[str, ...]) -> dict[str, type[Any]]:
    names = [m.name for m in iter_modules(folders)]
    return {name: import_module(f"{package}.{name}").Method for name in names}


@cache
def _of_plugins(hook: str) -> dict[str, type[Any]]:
    named = chain.from_iterable(found.items() for found in getattr(hooks(), hook)())
    return {name: load_object(place) for name, place in named}


def _make(
    where: str, methods: Mapping[str, type[Any]], name: str, parameters: Mapping[str, Any]
) -> Any:
    if name not in methods:
        raise UnknownMethod(
            f"{where}.method {name!r} is not known; known methods: {', '.join(sorted(methods))}",
            field=f"{where}.method",
        )
    cls = methods[name]
    return cls(**check(schema_of(cls), parameters, where=where))
