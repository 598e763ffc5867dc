"""What the gateway's process must not load by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_no_torch_in_the_gateway_until_an_embedder_starts() -> None:
    code = (
        "import sys, kvstitch.service.gateway.server, kvstitch.service.cli.serve; "
        "import tests.fakes.worker; "
        "print(sorted({'torch', 'transformers', 'kvstitch.kvstore', 'faiss'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert run.stdout.strip() == "[]", run.stderr


def test_no_database_where_none_is_used() -> None:
    """Every command imports all of the command line; many programs need the retriever's types."""
    code = (
        "import sys, kvstitch.retriever, kvstitch.service.cli; "
        "import kvstitch.service.gateway.documents.parsing.parser_process; "
        "print(sorted({'sqlalchemy', 'fastapi'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert run.stdout.strip() == "[]", run.stderr


def test_no_client_of_postgresql_without_its_address(folder: Path, tmp_path: Path) -> None:
    """Neither when a gateway is built nor when it opens its databases."""
    code = (
        "import sys; from pathlib import Path; from kvstitch.service.settings import load; "
        "from kvstitch.service.gateway.composition import Gateway; "
        "from tests.fakes.models import *; "
        "gateway = Gateway(load(data_dir=Path(sys.argv[1]), model=sys.argv[2]), "
        "Path(sys.argv[2]), embedder=HashingEmbedder()); gateway.claim(); "
        "print([m for m in sys.modules if m.startswith('psycopg')])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "data"), str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert run.stdout.strip() == "[]", run.stderr


def test_metrics_declared_for_the_worker_are_those_it_sends() -> None:
    """The worker's side imports torch, so it is read as text."""
    import re
    from pathlib import Path

    from kvstitch import service
    from kvstitch.service.shared.metrics import WORKER_METRICS

    folder = Path(service.__file__).parent / "worker"
    sent = set()
    for file in folder.rglob("*.py"):
        sent |= set(re.findall(r'"(kvstitch_[a-z_]+)"', file.read_text(encoding="utf-8")))
    assert sent and sent <= set(WORKER_METRICS)
