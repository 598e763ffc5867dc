"""Every benchmark can be imported: what it uses of the product is still there."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import pytest

import benchmarks

MODULES = [found.name for found in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_it_can_be_imported(name: str) -> None:
    import_module(name)
