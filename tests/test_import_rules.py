"""The import rules of pyproject.toml are kept, and each of them fails on a planted violation."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import grimp
import pytest
from grimp import ImportGraph
from importlinter import Contract
from importlinter.configuration import configure
from importlinter.contracts.acyclic_siblings import AcyclicSiblingsContract
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.independence import IndependenceContract
from importlinter.contracts.layers import LayersContract
from importlinter.contracts.protected import ProtectedContract

ROOT = Path(__file__).parents[1]
RULES: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
CONTRACTS: list[dict[str, Any]] = RULES["contracts"]
TYPES: dict[str, type[Contract]] = {
    "acyclic_siblings": AcyclicSiblingsContract,
    "forbidden": ForbiddenContract,
    "independence": IndependenceContract,
    "layers": LayersContract,
    "protected": ProtectedContract,
}

configure()


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    return grimp.build_graph(*RULES["root_packages"], include_external_packages=True)


def kept(contract: dict[str, Any], graph: ImportGraph) -> bool:
    options = {k: v for k, v in contract.items() if k not in ("name", "type")}
    options = {k: str(v) if isinstance(v, bool) else v for k, v in options.items()}
    session = {"root_packages": RULES["root_packages"], "include_external_packages": "True"}
    checked = TYPES[contract["type"]](
        name=contract["name"], session_options=session, contract_options=options
    )
    # A contract may take ignored imports out of the graph: it gets one of its own.
    return bool(checked.check(deepcopy(graph), verbose=False).kept)


def violations(contract: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Imports (importer, imported) that the contract must refuse."""
    match contract["type"]:
        case "forbidden":
            for source in contract["source_modules"]:
                for forbidden in contract["forbidden_modules"]:
                    yield source, forbidden
        case "independence":
            one, other = contract["modules"]
            yield one, other
            yield other, one
        case "layers":
            (container,) = contract["containers"]
            rooms = [layer.split(" | ") for layer in contract["layers"]]
            for above, below in pairwise(rooms):
                yield f"{container}.{below[0]}", f"{container}.{above[0]}"
            for layer in rooms:
                for one, other in pairwise(layer):
                    yield f"{container}.{one}", f"{container}.{other}"
                    yield f"{container}.{other}", f"{container}.{one}"
        case "protected":
            for module in contract["protected_modules"]:
                yield "loadtest", module
        case "acyclic_siblings":
            yield "kvstitch.service.worker.layout", "kvstitch.service.worker.methods.layer_view"
            yield "kvstitch.kvstore.errors", "kvstitch.kvstore.store"


# One for each contract: what the linter does with the others is its own to test.
PLANTED = [
    pytest.param(contract, *next(violations(contract)), id=contract["name"])
    for contract in CONTRACTS
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: c["name"])
def test_is_kept(graph: ImportGraph, contract: dict[str, Any]) -> None:
    assert kept(contract, graph)


def test_they_name_modules_that_exist(graph: ImportGraph) -> None:
    """Packages outside the project may be missing from the graph, because nobody imports them."""
    for contract in CONTRACTS:
        for module in {module for pair in violations(contract) for module in pair}:
            assert module in graph.modules or "." not in module, (contract["name"], module)


@pytest.mark.parametrize(("contract", "importer", "imported"), PLANTED)
def test_a_planted_violation_fails(
    graph: ImportGraph, contract: dict[str, Any], importer: str, imported: str
) -> None:
    planted = deepcopy(graph)
    for module in {importer, imported} - planted.modules:
        planted.add_module(module, is_squashed=True)
    planted.add_import(importer=importer, imported=imported, line_number=1, line_contents="planted")
    assert not kept(contract, planted)
