"""A live service with the demo model, and the environments of the clients that run against it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.models import DEMO
from tests.e2e.service import Service

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / "build" / "clients-env" / "bin" / "python"
NODE_MODULES = ROOT / "build" / "clients-node" / "node_modules"
SCRIPTS = Path(__file__).parent / "scripts"
RUN_S = 240.0  # some of them import for half a minute on a busy machine
DOCUMENTS = [
    {
        "doc_id": "quentin",
        "title": "Quentin Bruvik",
        "text": "Quentin Bruvik keeps a goat. The coat of Quentin Bruvik is purple.",
    },
    {
        "doc_id": "zanska",
        "title": "Old Zanska",
        "text": "The symbol of Old Zanska is the eagle. Old Zanska lies on the river Nile.",
    },
]

RunClient = Callable[[str], Any]


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The demo model; it answers short questions about documents, and calls tools if it must."""
    with Service(DEMO, tmp_path_factory.mktemp("clients") / "data") as service:
        service.ingest(DOCUMENTS)
        yield service


@pytest.fixture
def run_python(demo: Service) -> RunClient:
    """Run a script with the clients' Python; what it prints last, as JSON."""
    if not PYTHON.is_file():
        pytest.skip("the clients are not installed: scripts/install-clients.sh")
    return lambda name: _run([str(PYTHON), "-W", "ignore", str(SCRIPTS / name)], demo)


@pytest.fixture
def run_node(demo: Service) -> RunClient:
    """Run a script with Node; what it prints last, as JSON."""
    node = shutil.which("node")
    if node is None or not NODE_MODULES.is_dir():
        pytest.skip("Node or the clients are not installed: scripts/install-clients.sh")

    def run(name: str) -> Any:
        # Modules are looked for beside the script, so it goes where they are.
        script = NODE_MODULES.parent / name
        shutil.copyfile(SCRIPTS / name, script)
        return _run([node, str(script)], demo)

    return run


def _run(command: list[str], service: Service) -> Any:
    url = str(service.http.base_url).rstrip("/") + "/v1"
    environment = {
        **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")},
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": "none",
        # Nothing of a test leaves this machine.
        **{"OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        **{"LANGCHAIN_TRACING_V2": "false", "DO_NOT_TRACK": "1"},
    }
    done = subprocess.run(
        [*command, url], capture_output=True, text=True, env=environment, timeout=RUN_S
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}\n{service.log()}"
    return json.loads(done.stdout.strip().splitlines()[-1])
