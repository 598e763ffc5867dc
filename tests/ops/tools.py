"""The programs that check images, compose file and chart, as tests use them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
TOOLS = REPOSITORY / ".venv" / "ops" / "bin"
CHART = REPOSITORY / "helm" / "kvstitch"
VALUES = Path(__file__).with_name("values")


def install() -> str | None:
    """Install what is missing; None, or why it cannot be."""
    script = REPOSITORY / "scripts" / "install-ops-tools.sh"
    done = subprocess.run([script], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return None if done.returncode == 0 else (done.stderr.strip() or "no reason given")[-500:]


def chart(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    """What `tests/ops/engine.py` answers: requests are renderings, see there."""
    command = [TOOLS / "python", Path(__file__).with_name("engine.py"), CHART]
    done = subprocess.run(command, input=json.dumps(requests), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def compose(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """docker-compose on the repository's file, without what this shell or a .env may have set."""
    known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = [program, "--env-file", "tests/ops/empty.env", "-f", "docker-compose.yml", *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, env={**known, **environment}, capture_output=True, text=True
    )
