"""transformers' `generate`, behind a small HTTP server that streams (`generate_server`).

transformers' own server takes conversations only, so it could not be given the same token ids.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.dialects import Completions
from benchmarks.peers.servers.own_process import OwnProcess
from benchmarks.peers.servers.peer import About, Conditions

SCRIPT = Path(__file__).with_name("generate_server.py")


class TransformersServer(OwnProcess):
    """`generate` with its default cache, which ends with the answer."""

    def __init__(self, conditions: Conditions) -> None:
        super().__init__("transformers", conditions)
        self.dialect = Completions("model")

    def command(self, port: int) -> Sequence[str]:
        threads = str(self.conditions.threads)
        return [sys.executable, str(SCRIPT), str(self.conditions.model), str(port), threads]

    def about(self) -> About:
        settings = "generate, sdpa, bfloat16, no cache between requests"
        return About(version("transformers"), settings, {"torch": version("torch")})
