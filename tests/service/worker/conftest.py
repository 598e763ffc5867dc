"""One thread, no gradients, models shared by the session, the largest differences at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from service.worker.kernels.cpu import build
from tests.service.worker.tiny import ALL_MODELS, FAMILIES, Tiny, largest, tiny


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
def built_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the kernels that are written in C, as the sources have them now."""
    if build.compiler() is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("kernels")
    try:
        build.build(folder)
    except RuntimeError as error:
        pytest.skip(f"the kernels do not compile here: {error}")
    return folder


@pytest.fixture(params=ALL_MODELS, ids="-".join)
def any_model(request: pytest.FixtureRequest) -> Tiny:
    """Every family with every kind of RoPE."""
    return tiny(*request.param)


@pytest.fixture(params=list(FAMILIES))
def any_family(request: pytest.FixtureRequest) -> Tiny:
    """Every family, RoPE llama3 (position-dependent in three ways at these lengths)."""
    return tiny(request.param, "llama3")


@pytest.fixture
def model() -> Tiny:
    """One model, for what does not depend on the family."""
    return tiny("qwen3", "yarn")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if largest and terminalreporter.verbosity >= 0:
        terminalreporter.write_sep("-", "largest differences against the reference")
        for claim, gap in sorted(largest.items()):
            terminalreporter.write_line(f"{gap:9.2e}  {claim}")
