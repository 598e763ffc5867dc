"""Every kernel's checks in Triton's interpreter: some shapes, and all."""

from __future__ import annotations

import importlib

import pytest

from tests_gpu.kernels.interpreter import MODULES, needs_triton, run_interpreted

pytestmark = needs_triton
CHECKS = [
    f"{module}.{check.__name__}"
    for module in MODULES
    for check in importlib.import_module(f"tests_gpu.kernels.test_{module}").CHECKS
]


@pytest.fixture(scope="module")
def with_few_shapes() -> dict[str, str]:
    return run_interpreted(*CHECKS, few=True)


@pytest.mark.parametrize("check", CHECKS)
def test_with_few_shapes(with_few_shapes: dict[str, str], check: str) -> None:
    assert not with_few_shapes[check], with_few_shapes[check]


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_with_all_shapes(check: str) -> None:
    found = run_interpreted(check, few=False)
    assert not found[check], found[check]
