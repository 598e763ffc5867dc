"""One thread, no gradients, models shared by the session, the largest differences at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kvstitch.service.worker.kernels.cpu import build, native
from tests.service.worker.tiny import (
    ALL_MODELS,
    FAMILIES,
    PAIRED_MODELS,
    PLAIN_FAMILIES,
    Tiny,
    largest,
    rope_of,
    tiny,
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def compiled() -> Any:
    """The module of the kernels that are written in C."""
    if (reason := native.why_missing()) is not None:
        pytest.skip(reason)
    assert build.is_current(), (
        "sources have changed: python -m kvstitch.service.worker.kernels.cpu.build"
    )
    return native.module()


@pytest.fixture(params=[False, True], ids=["fp32", "bf16_dot"])
def bf16_dot(
    request: pytest.FixtureRequest, compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products in fp32, and by the CPU's bfloat16 dot products."""
    use_bf16_dot(compiled, monkeypatch, request.param)


def use_bf16_dot(compiled: Any, monkeypatch: pytest.MonkeyPatch, used: bool) -> None:
    """Let the kernels use the CPU's bfloat16 dot products, or not."""
    if used and not compiled.cpu()[1]:
        pytest.skip("this CPU has no AVX512-BF16")
    monkeypatch.setattr(native, "has_bf16_dot", lambda: used)


@pytest.fixture(params=ALL_MODELS, ids="-".join)
def every_model(request: pytest.FixtureRequest) -> Tiny:
    """Every plain family with every kind of RoPE."""
    return tiny(*request.param)


@pytest.fixture(params=PAIRED_MODELS, ids="-".join)
def any_model(request: pytest.FixtureRequest) -> Tiny:
    """Every plain family and every kind of RoPE, twice each."""
    return tiny(*request.param)


@pytest.fixture(params=list(PLAIN_FAMILIES))
def any_family(request: pytest.FixtureRequest) -> Tiny:
    """Every plain family, RoPE llama3 (position-dependent in three ways at these lengths)."""
    return tiny(request.param, "llama3")


@pytest.fixture(params=sorted(set(FAMILIES) - set(PLAIN_FAMILIES)))
def other_family(request: pytest.FixtureRequest) -> Tiny:
    """Families whose layers differ."""
    return tiny(request.param, rope_of(request.param))


@pytest.fixture
def model() -> Tiny:
    """One model, for what does not depend on the family."""
    return tiny("qwen3", "yarn")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if largest and terminalreporter.verbosity >= 0:
        terminalreporter.write_sep("-", "largest differences against the reference")
        for claim, gap in sorted(largest.items()):
            terminalreporter.write_line(f"{gap:9.2e}  {claim}")
