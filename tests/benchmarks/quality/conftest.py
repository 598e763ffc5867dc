from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.benchmarks.quality.methods import folders_restored


@pytest.fixture(autouse=True, scope="module")
def _no_methods_stay() -> Iterator[None]:
    with folders_restored():
        yield
