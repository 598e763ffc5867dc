"""The checks of llm-comply, which hold responses and events against the published schemas."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from tests.e2e.clients.conftest import PYTHON, RUN_S
from tests.e2e.service import Service

pytestmark = pytest.mark.slow
# A text model takes no images. A request without a model is answered by the only one there is. The
# demo model, made to write any text as an argument, never comes to the text's end.
EXPECTED = {"image-input", "error-handling", "tool-calling"}


@pytest.mark.parametrize("format", ["openai-chat", "open-responses"])
def test_llm_comply(demo: Service, format: str) -> None:
    tool = PYTHON.with_name("llm-comply")
    if not tool.is_file():
        pytest.skip("the clients are not installed: scripts/install-clients.sh")
    url = str(demo.http.base_url).rstrip("/") + "/v1"
    done = subprocess.run(
        [str(tool), "--format", format, "-u", url, "-k", "none", "-m", "demo_model", "--json"],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    report: dict[str, Any] = json.loads(done.stdout)
    results = {result["id"]: result for result in report["results"]}
    assert len(results) >= 8, report
    failed = [one for one in results.values() if one["status"] == "failed"]
    assert {one["id"].removeprefix("chat-") for one in failed} <= EXPECTED, failed
    assert sum(one["status"] == "passed" for one in results.values()) >= 5
