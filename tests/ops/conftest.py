"""Tools and renderings, once for all tests of this folder."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops import tools

# The oldest version the chart admits and the newest there are schemas of.
KUBERNETES = ("1.27", "1.37")

Rendered = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def ops_tools() -> None:
    """Skips with the installer's words where the tools cannot be had."""
    if (reason := tools.install()) is not None:
        pytest.skip(f"scripts/install-ops-tools.sh: {reason}")


@pytest.fixture(scope="session")
def rendered(ops_tools: None) -> Rendered:
    """File name to answer of the engine, for every file in values/."""
    files = sorted(tools.VALUES.glob("*.yaml"))
    requests = [{"values": file.read_text(), "schemas": KUBERNETES} for file in files]
    return {file.stem: a for file, a in zip(files, tools.chart(*requests), strict=True)}
